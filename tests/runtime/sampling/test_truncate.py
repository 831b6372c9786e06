"""Top-k, top-p, min-p and typical-p, against definitions that sort everything in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.runtime.sampling.truncate import largest, min_p, top_k, top_p, total, typical_p

Floats = NDArray[np.float32]


def falling(weights: Floats) -> list[int]:
    values = weights.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def plain_top_k(weights: Floats, count: int) -> list[int]:
    return sorted(falling(weights)[:count])


def plain_until(weights: Floats, order: list[int], share: float) -> list[int]:
    wanted, values = share * weights.sum(dtype=np.float64), weights.tolist()
    mass, kept = 0.0, []
    for i in order:
        kept.append(i)
        mass += values[i]
        if mass >= wanted:
            break
    return sorted(kept)


def plain_top_p(weights: Floats, share: float) -> list[int]:
    return plain_until(weights, falling(weights), share)


def plain_typical_p(weights: Floats, share: float) -> list[int]:
    probs = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    surprise = {i: -np.log(p) for i, p in enumerate(probs) if p > 0}
    entropy = sum(probs[i] * s for i, s in surprise.items())
    return plain_until(weights, sorted(surprise, key=lambda i: (round(abs(surprise[i] - entropy), 12), i)), share)


def rows(vocab: int) -> list[Floats]:
    """Weights as softmax makes them: spread, peaked, flat, tied, with zeros."""
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal(vocab).astype(np.float32)
    spread, peaked = np.exp(logits - logits.max()), np.exp(12 * (logits - logits.max()))
    tied = np.exp(np.round(logits) - np.round(logits).max())
    gaps = np.where((rng.random(vocab) < 0.5) & (spread < 1), np.float32(0), spread)
    return [spread, peaked, np.ones(vocab, np.float32), tied, gaps]


@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 200, 4999, 20_000])
def test_top_k_and_top_p_equal_full_sorts(vocab: int) -> None:
    for weights in rows(vocab):
        for count in (1, 2, 40, vocab // 2, vocab, vocab + 5):
            assert top_k(weights, max(count, 1)).tolist() == plain_top_k(weights, max(count, 1))
        for share in (1e-9, 0.1, 0.5, 0.9, 0.999):
            assert top_p(weights, share).tolist() == plain_top_p(weights, share)
    ordered = largest(rows(vocab)[3], 30)
    assert ordered.tolist() == falling(rows(vocab)[3])[:30]


@pytest.mark.parametrize("vocab", [1, 2, 65, 3000, 10_000])
def test_min_p_and_typical_p_equal_their_definitions(vocab: int) -> None:
    for weights in rows(vocab):
        for share in (1e-6, 0.2, 0.5, 0.95, 1.0):
            assert list(min_p(weights, share)) == [i for i, w in enumerate(weights) if w >= share * weights.max()]
            if share < 1:
                assert list(typical_p(weights, share)) == plain_typical_p(weights, share)


def test_ties_go_to_the_lowest_id() -> None:
    weights = np.array([1, 4, 2, 4, 4, 2], np.float32)
    assert list(largest(weights, 4)) == [1, 3, 4, 2]
    assert list(top_k(weights, 2)) == [1, 3]
    assert list(top_p(weights, 0.3)) == [1, 3]
    assert list(typical_p(np.ones(6, np.float32), 0.4)) == [0, 1, 2]


def test_minus_infinity_is_the_last_of_all() -> None:
    logits = np.full(500, -np.inf, np.float32)
    logits[[7, 400]] = 1, 2
    assert list(largest(logits, 3)) == [400, 7, 0]


@pytest.mark.parametrize("cut", [top_k, top_p, min_p, typical_p])
def test_a_place_in_memory_changes_nothing(cut: Callable[[Floats, float], NDArray[np.int64]]) -> None:
    """A row of a larger call stands at any offset: sums must not depend on it, to the last bit."""
    weights = rows(5003)[0]
    room = np.empty(6000, np.float32)
    for offset in (0, 1, 3, 8, 17):
        place = room[offset : offset + len(weights)]
        place[:] = weights
        assert total(place) == total(weights)
        np.testing.assert_array_equal(
            cut(place, 50 if cut is top_k else 0.5), cut(weights, 50 if cut is top_k else 0.5)
        )


def test_totals_are_right_to_their_stated_error() -> None:
    for vocab in (1, 511, 512, 513, 152_000):
        for weights in rows(vocab):
            assert total(weights) == pytest.approx(weights.sum(dtype=np.float64), rel=2e-6)
