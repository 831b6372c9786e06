"""Block verification: how much is kept is decided for all drafted tokens together.

Sun et al. (2024), "Block verification accelerates speculative decoding", https://arxiv.org/abs/2403.10444, algorithm 2.
The text has exactly the target's distribution, and in expectation no fewer tokens are kept than one by one.

Later tokens decide where the block is cut, so a number that a discarded place used has decided something: the numbers
of a round, the draft's too, have to be its own.
"""

from __future__ import annotations

from mxspec.runtime.sampling.randomness import Purpose
from mxspec.runtime.verifiers.mrs import residual, surplus
from mxspec.runtime.verifiers.verdict import Verdict
from mxspec.runtime.verifiers.verifier import Scored


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
