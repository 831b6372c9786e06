"""A small model that guesses ahead."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.drafters.drafter import Proposal
from mxspec.runtime.model import Model
from mxspec.runtime.sampling.randomness import Purpose, uniform
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits, argmax_tokens, shape


class ModelDrafter:
    """A small model that guesses ahead.

    What it has not seen of the sequence is fed before the first guess: one token in most rounds, two where all was kept
    (its last own token, which it proposed but never read, and the target's).
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def limit(self, length: int) -> int:
        return max(self.model.capacity - length + 1, 0)

    def prefill(self, prompt: Sequence[int]) -> None:
        self.model.begin(self)
        self.model.append(prompt[: self.model.capacity], 1)

    def propose(self, tokens: Sequence[int], k: int, sampling: Sampling) -> Proposal:
        self.model.require(self)
        proposal = Proposal()
        unseen = list(tokens[self.model.length :])
        for i in range(k):
            logits = self.model.append(unseen, 1)[0]
            unseen = [self._choose(logits, len(tokens) + i, sampling, proposal)]
            proposal.tokens.append(unseen[0])
        return proposal

    def rollback(self, length: int) -> None:
        self.model.rollback(min(self.model.length, length))

    def _choose(self, logits: Logits, position: int, sampling: Sampling, proposal: Proposal) -> int:
        if sampling.greedy:
            return int(argmax_tokens(logits))
        distribution = shape(logits, sampling)
        proposal.distributions.append(distribution)
        return distribution.draw(uniform(sampling.seed, 0, position, Purpose.DRAFT))
