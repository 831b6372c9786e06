"""Which of the lossless ways keeps more of what a draft model guesses, by the rounds that were verified."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mxspec.runtime.drafters.drafter import ProposalKind
from mxspec.runtime.policy.shares import Share
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.verifiers.verify import BLOCK, MRS, Verifier

FORGET = 0.99  # weight that earlier tokens keep when another is seen
ENOUGH = 50.0  # tokens from which the figures decide
TRY_EVERY = 8  # texts; a greedy proposal does not show what a sampled one would have given


@dataclass(slots=True)
class Measured:
    """The share of drafted tokens that is kept if they are drawn from the draft, and if they are its likeliest."""

    sampled: Share = field(default_factory=partial(Share, 0.0, 0.0, FORGET))
    greedy: Share = field(default_factory=partial(Share, 0.0, 0.0, FORGET))
    _texts: int = 0

    def observe(self, target: Distribution, draft: Distribution) -> None:
        """Learn from a place at which both distributions are known: the share kept is Σ min(p, q), or p(argmax q)."""
        count = len(target.weights)
        own, other = target.probabilities(target.ids, count), draft.probabilities(target.ids, count)
        self.sampled.observe(float(np.minimum(own, other).sum()))
        self.greedy.observe(target.probability(draft.likeliest))

    def best(self) -> tuple[Verifier, ProposalKind]:
        """The way for the next text; where tokens are drawn, a block keeps at least as many as token-wise rejection."""
        self._texts += 1
        seen, greedy_is_better = self.sampled.seen, self.greedy.kept > self.sampled.kept
        if seen < ENOUGH or not greedy_is_better or self._texts % TRY_EVERY == 0:
            return BLOCK, "sampled"
        return MRS, "greedy"
