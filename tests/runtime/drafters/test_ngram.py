"""N-gram tables: what they propose, what they learn to leave, and which files are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.compile.guesses import count_ngrams
from mxspec.formats.errors import BundleError
from mxspec.runtime.drafters.drafter import Choice, Proposal
from mxspec.runtime.drafters.ngram import NgramDrafter, NgramTables
from mxspec.runtime.policy.break_even import BreakEven
from mxspec.runtime.sampling.settings import Sampling
from tests.runtime.conftest import make_want

VOCAB = 10
TAUGHT = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2, 3]
Arrays = dict[str, NDArray[Any]]


def arrays() -> Arrays:
    return count_ngrams(np.array(TAUGHT, np.int32), VOCAB)


def propose(
    text: list[int],
    k: int = 3,
    break_even: float = 0.0,
    choice: Choice | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
) -> Proposal:
    drafter = NgramDrafter(NgramTables(arrays(), VOCAB))
    want = make_want(
        text,
        k,
        vocab_size=VOCAB,
        sampling=sampling or Sampling(temperature=1.0),
        choice=choice or Choice(),
        seed=seed,
        memory=drafter.begin(text, ""),
        break_even=BreakEven(row=break_even),
    )
    drafter.propose([want])
    return want.proposal


def test_the_likeliest_is_proposed_token_by_token() -> None:
    assert propose([1, 2]).tokens == [3, 1, 2]
    assert propose([9, 2], k=1).tokens == [3]  # by the last token alone
    assert propose([9, 9], k=1).tokens == [1]  # by none: 1 and 2 are equally frequent
    assert propose([4], k=2).tokens == [1, 2]


def test_a_drawn_token_has_its_distribution() -> None:
    drawn = [propose([1, 2], k=1, choice=Choice(greedy_text=False), seed=seed) for seed in range(40)]
    assert {proposal.tokens[0] for proposal in drawn} == {3, 4}
    assert all(p.distributions[0].probability(3) == pytest.approx(0.75) and p.origins == ["ngram"] for p in drawn)


@pytest.mark.parametrize(
    ("sampling", "own_temperature", "expected"),
    [  # after 1, 2 came 3 three times and 4 once
        (Sampling(temperature=0.5), None, 9 / 10),
        (Sampling(temperature=2.0), None, 3**0.5 / (3**0.5 + 1)),
        (Sampling(temperature=2.0), 0.5, 9 / 10),
        (Sampling(temperature=1.0, top_k=1), None, 1.0),
        (Sampling(temperature=1.0, top_p=0.7), None, 1.0),
        (Sampling(temperature=1.0, min_p=0.2), None, 3 / 4),
    ],
)
def test_guesses_are_shaped_like_the_text(sampling: Sampling, own_temperature: float | None, expected: float) -> None:
    choice = Choice(greedy_text=False, temperature=own_temperature)
    drawn = [propose([1, 2], k=1, choice=choice, seed=seed, sampling=sampling) for seed in range(400)]
    assert all(p.distributions[0].probability(3) == pytest.approx(expected) for p in drawn)
    share = sum(p.tokens == [3] for p in drawn) / len(drawn)
    assert abs(share - expected) <= 4 * (expected * (1 - expected) / len(drawn)) ** 0.5


def test_a_token_that_is_not_worth_its_cost_is_not_proposed() -> None:
    assert len(propose([1, 2, 3, 1, 2, 3, 1, 2] * 8, break_even=0.3).tokens) == 3
    assert propose([5, 6, 7, 8, 9] * 20, break_even=0.1).tokens == []


def with_last(name: str, value: int) -> Callable[[Arrays], Any]:
    def change(known: Arrays) -> None:
        known[name][-1] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda known: known.pop("ids.2"), "table 2: ids are missing"),
        (lambda known: known.update({"counts.0": known["counts.0"][1:]}), "table 0: expected a count for each id"),
        (with_last("starts.2", 99), "table 2: expected entries for each context"),
    ],
)
def test_invalid_tables_are_refused(change: Callable[[Arrays], Any], says: str) -> None:
    known = arrays()
    change(known)
    with pytest.raises(BundleError, match=says):
        NgramTables(known, VOCAB)


@pytest.mark.parametrize(
    ("name", "place", "value", "last", "says"),
    [
        ("counts.0", -1, 0, [9], "table 0: expected a count of at least 1 for each id"),
        ("ids.1", -1, VOCAB, [4], f"table 1: expected rising ids from 0 to {VOCAB - 1}"),
        ("ids.1", 0, -1, [1], f"table 1: expected rising ids from 0 to {VOCAB - 1}"),
        ("ids.2", 0, 5, [1, 2], f"table 2: expected rising ids from 0 to {VOCAB - 1}"),
        ("starts.2", 1, 0, [1, 2], "table 2: expected entries for each context"),
        ("starts.2", 1, 99, [1, 2], "table 2: expected entries for each context"),
    ],
)
def test_damage_inside_a_table_is_found_when_it_is_read(
    name: str, place: int, value: int, last: list[int], says: str, toys: Any
) -> None:
    """A file as large as memory is not read through before the first text."""
    known = arrays()
    known[name][place] = value
    tables = NgramTables(known, VOCAB)
    with pytest.raises(BundleError, match=says):
        tables.after(last)
    session = toys.Session(toys.random_logits(VOCAB, 1))
    with pytest.raises(BundleError, match=says):
        list(toys.generate(session, None, [*last, *last], drafter=NgramDrafter(tables), k=2))
