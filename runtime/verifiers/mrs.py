"""Modified rejection sampling: the text has exactly the target's distribution.

Lossless speculative decoding after Leviathan et al. (2023), algorithm 1, and Chen et al. (2023), algorithm 2. The
acceptance test and the residual use the distributions that the tokens were really drawn from: both shaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.verifiers.verdict import Verdict


def verify_mrs(
    target: Callable[[int], Distribution],
    draft: Sequence[Distribution],
    drafted: Sequence[int],
    accept_uniform: Callable[[int], float],
    sample_uniform: Callable[[int], float],
) -> Verdict:
    """Modified rejection sampling.

    `draft` are the distributions that the drafted tokens int[K] were drawn from, `target(i)` is the target's for the
    i-th of them, and for the token after them at i = K; `accept_uniform(i)` decides whether a token is kept,
    `sample_uniform(i)` draws the token that follows i kept ones. All three are pure functions, not called for anything
    after the first rejection. A token is kept with probability min(1, target / draft); the first that is not is
    replaced by a draw from the normalised positive part of target - draft.
    """
    for i, token in enumerate(drafted):
        wanted = target(i)
        if not keeps(wanted, draft[i], token, accept_uniform(i)):
            return Verdict(i, i + 1, residual(wanted, draft[i]).draw(sample_uniform(i)))
    count = len(drafted)
    return Verdict(count, count, target(count).draw(sample_uniform(count)))


def keeps(target: Distribution, draft: Distribution, token: int, uniform: float) -> bool:
    """True with probability min(1, target / draft) of the token; one that the draft cannot have drawn is not kept."""
    draft_probability = draft.probability(token)
    return draft_probability > 0 and uniform * draft_probability < target.probability(token)


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """The positive part of target - draft; the target itself where rounding has left nothing of it."""
    surplus = target.probabilities(target.ids, len(target.weights)) - draft.probabilities(
        target.ids, len(target.weights)
    )
    rest = Distribution.of(np.maximum(surplus, 0.0), target.ids)
    return rest if rest.total > 0 else target
