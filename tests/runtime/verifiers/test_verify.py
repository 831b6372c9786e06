"""The verifying rules by hand, and modified rejection sampling by its defining identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Draws, Purpose
from mxspec.runtime.verifiers.verify import BLOCK, MATCH, MRS, Scored, Verdict, Verifier, keeps, residual, verify_greedy


def of(*weights: float) -> Distribution:
    return Distribution.of(np.array(weights, np.float32))


def judge(
    target: Sequence[Distribution],
    draft: Sequence[Distribution],
    drafted: Sequence[int],
    accept: Sequence[float],
    sample: Sequence[float],
    lenience: float = 1.0,
) -> Verdict:
    """Modified rejection sampling with given numbers."""

    class Given:
        def uniform(self, place: int, purpose: Purpose) -> float:
            return (accept if purpose == Purpose.ACCEPT else sample)[place]

    draws: Any = Given()
    return MRS.verify(Scored(drafted, draft, target.__getitem__, draws, lenience))


@pytest.mark.parametrize(
    ("best", "drafted", "verdict"),
    [
        ([5], [], Verdict(0, 0, 5)),
        ([5, 6, 7], [5, 6], Verdict(2, 2, 7)),
        ([5, 6, 7], [5, 7], Verdict(1, 2, 6)),
        ([5, 6, 7], [6, 6], Verdict(0, 1, 5)),
        ([5, 6, 7, 8], [4, 6, 7], Verdict(0, 1, 5)),
    ],
)
def test_greedy_keeps_the_prefix_that_the_target_would_have_written(
    best: list[int], drafted: list[int], verdict: Verdict
) -> None:
    assert verify_greedy(best.__getitem__, drafted) == verdict


def test_the_first_rejection_ends_a_round_and_later_tokens_are_not_evaluated() -> None:
    target, draft = of(1, 3), of(3, 1)
    verdict = judge([target, target], [draft, draft, draft], [1, 0, 1], [0.9, 0.5], [0.0, 0.7])
    assert verdict == Verdict(1, 2, 1)  # of 0.25 − 0.75 and 0.75 − 0.25 only the second is positive
    assert judge([target], [draft], [0], [0.34], [0.0]) == Verdict(0, 1, 1)  # kept with probability 1/3
    assert judge([target, draft], [draft], [0], [0.33], [0.9, 0.0]) == Verdict(1, 1, 0)


def test_all_kept_draws_the_bonus_from_the_row_behind_the_last() -> None:
    same, other = of(1, 1, 0), of(0, 0, 1)
    assert judge([same, same, other], [same, same], [0, 1], [0.999, 0.999], [0, 0, 0.5]) == Verdict(2, 2, 2)
    assert judge([other], [], [], [], [0.3]) == Verdict(0, 0, 2)


def test_a_residual_without_mass_is_the_target() -> None:
    target = of(0.1, 0.2, 0.7)
    assert residual(target, of(0.1, 0.2, 0.7)) is target
    np.testing.assert_allclose(residual(target, of(0, 1, 0)).probabilities(None, 3), [0.125, 0, 0.875], rtol=1e-6)


def test_a_token_that_the_draft_cannot_have_drawn_is_not_kept() -> None:
    assert not keeps(of(1, 1), of(0, 1), 0, 0.0)
    assert not keeps(of(0, 1), of(1, 1), 0, 0.0)
    assert keeps(of(1, 1), of(1, 3), 0, 1 - 2.0**-53)


@pytest.mark.parametrize("seed", range(20))
def test_kept_and_residual_together_are_the_target(seed: int) -> None:
    """Σ over draft tokens of draft · (keep + (1 − keep) · residual) = target, with every mix of dense and sparse."""
    rng = np.random.default_rng(seed)

    def random() -> Distribution:
        if rng.random() < 0.5:
            return Distribution.of(rng.exponential(size=9).astype(np.float32))
        ids = np.sort(rng.choice(9, rng.integers(1, 9), replace=False))
        return Distribution.of(rng.exponential(size=len(ids)).astype(np.float32), ids)

    target, draft = random(), random()
    target_probs, draft_probs = target.probabilities(None, 9), draft.probabilities(None, 9)
    keep = np.minimum(1, np.divide(target_probs, draft_probs, out=np.zeros(9), where=draft_probs > 0))
    for token in np.flatnonzero(draft_probs):
        assert keep[token] == 0 or keeps(target, draft, int(token), keep[token] - 1e-9)
        assert keep[token] == 1 or not keeps(target, draft, int(token), keep[token] + 1e-9)
    kept = draft_probs * keep
    rest = residual(target, draft).probabilities(None, 9)
    np.testing.assert_allclose(kept + (1 - kept.sum()) * rest, target_probs, atol=1e-12)


def test_lenience_keeps_more_but_nothing_that_the_target_cannot_write() -> None:
    target, draft = of(1, 3, 0), of(3, 1, 4)
    assert judge([target], [draft], [0], [0.7], [0.0]).accepted == 0  # 1/4 over 3/8
    assert judge([target], [draft], [0], [0.7], [0.0], lenience=0.98).accepted == 0
    assert judge([target, target], [draft], [0], [0.7], [0, 0.0], lenience=0.5).accepted == 1
    assert judge([target], [draft], [2], [0.0], [0.0], lenience=0.01).accepted == 0


def test_lenience_for_argmax_accepts_tokens_with_a_large_enough_share() -> None:
    assert verify_greedy([5, 6].__getitem__, [4], lambda place, token: token == 4) == Verdict(1, 1, 6)
    assert verify_greedy([5, 6].__getitem__, [3], lambda place, token: token == 4) == Verdict(0, 1, 5)


def blocks(rng: np.random.Generator, count: int, vocab: int) -> list[Distribution]:
    return [Distribution.of(rng.exponential(size=vocab) ** 2 * (rng.random(vocab) < 0.8) + 1e-12) for _ in range(count)]


def kept(verifier: Verifier, rounds: int, seed: int, k: int = 4) -> tuple[float, np.ndarray]:
    """Mean tokens kept, and how often each token came first, over rounds at the same places of a text."""
    rng = np.random.default_rng(seed)
    target, draft = blocks(rng, k + 1, 5), blocks(rng, k, 5)
    accepted, first = 0, np.zeros(5)
    for number in range(rounds):
        draws = Draws(number, 0, 3, fresh=verifier.fresh)
        pick = (
            (lambda q, i, d=draws: q.race(d, i))
            if verifier.matched
            else (lambda q, i, d=draws: q.draw(d.uniform(i, Purpose.DRAFT)))
        )
        drafted = [pick(q, i) for i, q in enumerate(draft)]
        verdict = verifier.verify(Scored(drafted, draft, target.__getitem__, draws))
        accepted += verdict.accepted
        first[[*drafted[: verdict.accepted], verdict.next_token][0]] += 1
    return accepted / rounds, first / rounds - target[0].probabilities(None, 5)


@pytest.mark.parametrize("seed", range(3))
def test_a_block_keeps_no_fewer_than_single_tokens_and_matching_keeps_some(seed: int) -> None:
    rounds = 4000
    single, block, match = (kept(verifier, rounds, seed) for verifier in (MRS, BLOCK, MATCH))
    noise = 5 * 4 / np.sqrt(rounds)  # five standard errors of a mean of numbers from 0 to 4, at most
    assert block[0] > single[0] - noise / 4
    assert match[0] > 0
    for _, error in (single, block, match):
        assert np.abs(error).max() < 5 * 0.5 / np.sqrt(rounds)


def test_where_draft_and_target_agree_all_is_kept() -> None:
    same = of(0.1, 0.2, 0.7)
    for verifier in (MRS, BLOCK, MATCH):
        draws = Draws(1, 0, 5, fresh=verifier.fresh)
        drafted = [same.race(draws, i) if verifier.matched else 2 for i in range(3)]
        assert verifier.verify(Scored(drafted, [same] * 3, lambda place: same, draws)).accepted == 3
