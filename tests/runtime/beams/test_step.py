"""One step, and when a search is over; a search over everything finds the likeliest text there is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.beams.step import Candidate, Hypotheses, continuations, log_softmax, looked_at, select
from mxspec.runtime.sampling.settings import Beams

RNG = np.random.default_rng(7)


def test_log_probabilities_equal_float64_whatever_the_other_rows_are() -> None:
    rows = (5 * RNG.standard_normal((5, 9001))).astype(np.float32)
    got = log_softmax(rows)
    np.testing.assert_allclose(
        got, rows - np.log(np.exp(rows.astype(np.float64)).sum(axis=1, keepdims=True)), atol=3e-6
    )
    for some in ([3], [4, 3], [0, 3, 1]):
        np.testing.assert_array_equal(log_softmax(np.stack([rows[i] for i in some])), got[some])
    for bad in (np.nan, np.inf):
        rows[3, 7] = bad
        with pytest.raises(GenerationError, match="NaN or infinity"):
            log_softmax(rows)


@pytest.mark.parametrize("count", [1, 4, 30, 1000])
def test_continuations_are_the_best_of_all_beams_together(count: int) -> None:
    rows = RNG.integers(-40, 0, (3, 200)).astype(np.float32)  # many ties
    rows[:, ::7] = -np.inf
    scores = [np.float32(score) for score in (-1, -3, -2)]
    found = continuations(scores, rows, count)
    totals = np.concatenate([row + score for row, score in zip(rows, scores, strict=True)])
    order = [i for i in np.argsort(-totals, kind="stable") if totals[i] > -np.inf][:count]
    assert [(one.score, one.parent, one.token) for one in found] == [(totals[i], i // 200, i % 200) for i in order]


def test_an_end_beyond_the_first_beams_is_dropped_and_others_take_its_place() -> None:
    found = [Candidate(0, token, np.float32(-token)) for token in range(8)]
    live, ended = select(found, 3, lambda one: "eos" if one.token in (1, 4) else None)
    assert [one.token for one in live] == [0, 2, 3]
    assert [(one.token, end) for one, end in ended] == [(1, "eos")]
    live, _ = select(found, 3, lambda one: "eos" if one.token < 3 else None)
    assert [one.token for one in live] == [3, 4, 5]
    assert looked_at(3, 0) == looked_at(3, 1) == 6
    assert looked_at(3, 2) == 9


def test_the_best_texts_are_kept_in_order() -> None:
    kept: Hypotheses[str] = Hypotheses(Beams(count=3))
    for score, text in ((-2.0, "a"), (-1.0, "b"), (-2.0, "c"), (-3.0, "d"), (-1.5, "e")):
        kept.add(score, text)
    assert kept.found == [(-1.0, "b"), (-1.5, "e"), (-2.0, "a")]


@pytest.mark.parametrize(
    ("early", "penalty", "goes_on"),
    [(True, 1.0, False), (False, 1.0, False), (False, 0.0, False), ("never", 1.0, True), ("never", -1.0, False)],
)
def test_when_nothing_can_be_better_the_search_is_over(early: Any, penalty: float, goes_on: bool) -> None:
    """The worst text kept has -2; the best beam -10 of 4 tokens, at most 8."""
    kept: Hypotheses[str] = Hypotheses(Beams(count=2, early_stopping=early, length_penalty=penalty))
    kept.add(-1.0, "a")
    assert kept.may_improve(np.float32(-10), 4, 8)
    kept.add(-2.0, "b")
    assert kept.may_improve(np.float32(-10), 4, 8) == goes_on
    assert kept.may_improve(np.float32(-0.5), 1, 8) == (early is not True)


def test_a_search_of_all_beams_finds_the_likeliest_text(toys: Any) -> None:
    vocab, length = 4, 4
    logits = toys.random_logits(vocab, 3)

    def score(text: tuple[int, ...]) -> float:
        return float(sum(log_softmax(logits((1, *text[:place]))[None])[0, token] for place, token in enumerate(text)))

    every = sorted(itertools.product(range(vocab), repeat=length), key=score, reverse=True)
    events = toys.search(toys.Session(logits, slots=64), None, [1], count=64, best=3, max_new_tokens=length)
    for sample, text in enumerate(every[:3]):
        own = [event for event in events if event.sample == sample]
        assert tuple(event.id for event in own[:length]) == text
        assert own[-1].score == pytest.approx(score(text) / length, rel=1e-5)
