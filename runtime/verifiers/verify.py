"""Verifiers: pure functions from a scored round to what is kept of it.

- Greedy: the text is the one that the target alone writes.
- Modified rejection sampling (`mrs`): Leviathan et al. (2023), algorithm 1, and Chen et al. (2023), algorithm 2. The
  acceptance test and the residual use the distributions that the tokens were really drawn from: both shaped.
- Block verification (`block`): Sun et al. (2024), "Block verification accelerates speculative decoding",
  https://arxiv.org/abs/2403.10444, algorithm 2. How much is kept is decided for all drafted tokens together, and in
  expectation no fewer tokens are kept than one by one. Later tokens decide where the block is cut, so a number that a
  discarded place used has decided something: the numbers of a round, the draft's too, have to be its own.
- Sample and match (`match`): the target's choice argmax(log p + g) with Gumbel noise g is a draw from p. Its noise is
  that of the seed, the sample and the position alone, so a seed gives one text: at every K, with every drafter, in
  every batch, and without drafting.

Sampled text has exactly the target's distribution with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Draws, Purpose


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first `accepted` drafted tokens are kept, and `next_token` comes after them.

    `evaluated` counts the drafted tokens up to and including the first rejected one.
    """

    accepted: int
    evaluated: int
    next_token: int


@dataclass(frozen=True, slots=True)
class Scored:
    """A round of a sampled text: what was drafted, and what the target makes of it.

    `drafts` are the distributions that the drafted tokens int[K] were drawn from, `target(i)` is the target's for the
    i-th of them, and for the token after them at i = K; it is a pure function, not to be called for anything after the
    first token that is not kept. `draws` are the round's random numbers. `lenience` is 1 where the text is to have the
    target's distribution.
    """

    drafted: Sequence[int]
    drafts: Sequence[Distribution]
    target: Callable[[int], Distribution]
    draws: Draws
    lenience: float = 1.0


@dataclass(frozen=True, slots=True)
class Verifier:
    """A rule for which drafted tokens are kept."""

    name: str
    verify: Callable[[Scored], Verdict]
    fresh: bool = False  # a round's random numbers have to be its own
    matched: bool = False  # draft and target choose with the same noise
    takes_lenience: bool = False


def verify_greedy(
    target: Callable[[int], int], drafted: Sequence[int], accepts: Callable[[int, int], bool] | None = None
) -> Verdict:
    """Keep the longest prefix of the drafted int[K] that equals the target's own choices; its next choice follows.

    `target(i)` is its choice in the place of the i-th drafted token, and after all of them at i = K; it is not called
    for anything after the first that is not kept. With lenience `accepts(i, token)` says which others are kept as well.
    """
    for i, token in enumerate(drafted):
        choice = target(i)
        if choice != token and not (accepts and accepts(i, token)):
            return Verdict(i, i + 1, choice)
    return Verdict(len(drafted), len(drafted), target(len(drafted)))


def verify_mrs(scored: Scored) -> Verdict:
    """Keep a token with probability min(1, target / (lenience · draft)).

    The first that is not kept is replaced by a draw from the normalised positive part of target - draft. With a
    lenience below 1 (Leviathan et al., A.5) the text is no longer the target's; no token becomes likelier than the
    target's probability over the lenience, and none that the target cannot write is kept.
    """
    draws, drafts = scored.draws, scored.drafts
    for i, token in enumerate(scored.drafted):
        wanted = scored.target(i)
        if not keeps(wanted, drafts[i], token, scored.lenience * draws.uniform(i, Purpose.ACCEPT)):
            return Verdict(i, i + 1, residual(wanted, drafts[i]).draw(draws.uniform(i, Purpose.RESAMPLE)))
    count = len(scored.drafted)
    return Verdict(count, count, scored.target(count).draw(draws.uniform(count, Purpose.RESAMPLE)))


def keeps(target: Distribution, draft: Distribution, token: int, uniform: float) -> bool:
    """True with probability min(1, target / draft) of the token; one that the draft cannot have drawn is not kept."""
    draft_probability = draft.probability(token)
    return draft_probability > 0 and uniform * draft_probability < target.probability(token)


def residual(target: Distribution, draft: Distribution, kept: float = 1.0) -> Distribution:
    """The positive part of kept · target - draft; the target itself where rounding has left nothing of it."""
    rest = Distribution.of(surplus(target, draft, kept), target.ids)
    return rest if rest.total > 0 else target


def surplus(target: Distribution, draft: Distribution, kept: float = 1.0) -> NDArray[np.float64]:
    """float64: max(0, kept · target - draft) for each token that the target can write."""
    count = len(target.weights)
    own = target.probabilities(target.ids, count)
    return np.maximum(kept * own - draft.probabilities(target.ids, count), 0.0)


def verify_block(scored: Scored) -> Verdict:
    """Keep the longest beginning whose own test it passes, whatever the tests before it said.

    p_i = min(1, p_{i-1} · target / draft of the i-th token) is how far the block up to it is the target's, p_0 = 1. It
    passes with probability h_i = s / (s + 1 - p_i), s being the sum of max(0, p_i · target - draft) at the next place;
    the whole block with h_K = p_K. What follows it is drawn from that surplus, or from the target after all of it.
    """
    drafted, drafts, draws = scored.drafted, scored.drafts, scored.draws
    count, kept, kept_share, share = len(drafted), 0, 1.0, 1.0
    for i, token in enumerate(drafted):
        share = min(1.0, share * _ratio(scored, i, token))
        if share == 0:
            break  # nothing longer passes either
        passes = share
        if i + 1 < count:
            rest = float(surplus(scored.target(i + 1), drafts[i + 1], share).sum())
            passes = rest / (rest + 1 - share) if rest > 0 else 0.0
        if draws.uniform(i, Purpose.ACCEPT) < passes:
            kept, kept_share = i + 1, share
    chosen = scored.target(kept)
    if kept < count:
        chosen = residual(chosen, drafts[kept], kept_share)
    evaluated = min(kept + 1, count)
    return Verdict(kept, evaluated, chosen.draw(draws.uniform(kept, Purpose.RESAMPLE)))


def _ratio(scored: Scored, place: int, token: int) -> float:
    draft = scored.drafts[place].probability(token)
    return scored.target(place).probability(token) / draft if draft > 0 else 0.0


def verify_match(scored: Scored) -> Verdict:
    """Keep the longest beginning that the target chooses too; its next choice follows."""
    return verify_greedy(lambda place: scored.target(place).race(scored.draws, place), scored.drafted)


MRS = Verifier("mrs", verify_mrs, takes_lenience=True)
BLOCK = Verifier("block", verify_block, fresh=True)
MATCH = Verifier("match", verify_match, matched=True)
VERIFIERS = {verifier.name: verifier for verifier in (MRS, BLOCK, MATCH)}
