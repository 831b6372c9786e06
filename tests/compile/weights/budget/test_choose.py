"""The choice of formats against every choice there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mxspec.compile.weights.budget import choose
from mxspec.compile.weights.budget.choose import Option, Options, within_bytes, within_loss

FORMATS = ("four", "six", "other six", "eight")


def random_products(seed: int, count: int = 5) -> list[Options]:
    """Products of several sizes; losses fall with bytes, mostly."""
    rng = np.random.default_rng(seed)
    products: list[Options] = []
    for _ in range(count):
        blocks = int(rng.integers(1, 9))
        options = {
            name: Option(blocks * size, float(rng.exponential() * 2.0 ** (-size / 20)))
            for name, size in zip(FORMATS, (272, 400, 400, 528), strict=True)
        }
        products.append({name: options[name] for name in rng.permutation(FORMATS)[: rng.integers(1, 5)]})
    return products


def every_choice(products: list[Options]) -> list[tuple[int, float]]:
    """Bytes and loss of every choice."""
    return [
        (sum(option.bytes for option in choice), sum(option.loss for option in choice))
        for choice in itertools.product(*(options.values() for options in products))
    ]


def taken(products: list[Options], formats: list[str]) -> tuple[int, float]:
    chosen = [options[name] for options, name in zip(products, formats, strict=True)]
    return sum(option.bytes for option in chosen), sum(option.loss for option in chosen)


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_within_the_bytes_loses_less(seed: int) -> None:
    products = random_products(seed)
    choices = every_choice(products)
    smallest, largest = min(choices)[0], max(choices)[0]
    for most in {smallest, (smallest + largest) // 2, largest, largest + 1000, smallest + (largest - smallest) // 3}:
        formats = within_bytes(products, most)
        assert formats is not None
        used, loss = taken(products, formats)
        assert used <= most
        assert loss == pytest.approx(min(loss for used, loss in choices if used <= most), rel=1e-12)
    assert within_bytes(products, smallest - 1) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_within_the_loss_takes_fewer_bytes(seed: int) -> None:
    products = random_products(seed)
    choices = every_choice(products)
    least, worst = min(loss for _, loss in choices), max(loss for _, loss in choices)
    for most in (least * (1 + 1e-9), (least + worst) / 2, worst * 2):
        formats = within_loss(products, most)
        assert formats is not None
        used, loss = taken(products, formats)
        assert loss <= most
        assert used == min(used for used, loss in choices if loss <= most)
    assert within_loss(products, least * (1 - 1e-9)) is None


@pytest.mark.parametrize("seed", range(10))
def test_a_coarser_table_stays_within_the_bytes_and_is_nearly_as_good(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = [
        {name: Option(option.bytes + seed, option.loss) for seed, (name, option) in enumerate(options.items())}
        for options in random_products(seed)
    ]
    monkeypatch.setattr(choose, "STATES", 400)
    choices = every_choice(products)
    most = (min(choices)[0] + max(choices)[0]) // 2
    formats = within_bytes(products, most)
    assert formats is not None
    used, loss = taken(products, formats)
    assert used <= most
    slack = len(products) * (max(choices)[0] - min(choices)[0]) // 300
    assert loss <= min(loss for used, loss in choices if used <= most - slack)
