"""Who proposes tokens. The verifier does not care: it sees tokens and the distributions they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mxspec.runtime.model import Model
from mxspec.runtime.randomness import Purpose, uniform
from mxspec.runtime.sampling import Logits, Probs, Sampling, argmax_tokens, draw, shape_probs


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, and when sampling the distribution float64[vocab] that each was drawn from."""

    tokens: list[int] = field(default_factory=list)
    probs: list[Probs] = field(default_factory=list)


class Drafter(Protocol):
    """Proposes what may follow `tokens`; called once a round with all tokens of the sequence so far."""

    def limit(self, length: int) -> int:
        """How many tokens can be proposed behind `length` tokens."""
        ...

    def propose(self, tokens: Sequence[int], k: int, sampling: Sampling) -> Proposal: ...

    def rollback(self, length: int) -> None:
        """The sequence is `length` tokens long now, all of them known; what was drafted beyond is dropped."""
        ...


class NoDrafter:
    """Plain decoding."""

    def limit(self, length: int) -> int:
        return 0

    def propose(self, tokens: Sequence[int], k: int, sampling: Sampling) -> Proposal:
        return Proposal()

    def rollback(self, length: int) -> None:
        pass


class ModelDrafter:
    """A small model that guesses ahead.

    What it has not seen of the sequence is fed before the first guess: the prompt at first, one token in most rounds,
    two where all was kept (its last own token, which it proposed but never read, and the target's).
    """

    def __init__(self, model: Model, real_vocab: int) -> None:
        self.model = model
        self.real_vocab = real_vocab
        model.rollback(0)

    def limit(self, length: int) -> int:
        return max(self.model.capacity - length + 1, 0)

    def propose(self, tokens: Sequence[int], k: int, sampling: Sampling) -> Proposal:
        proposal = Proposal()
        unseen = list(tokens[self.model.length :])
        for i in range(k):
            logits = self.model.append(unseen, 1)[0, : self.real_vocab]
            unseen = [self._choose(logits, len(tokens) + i, sampling, proposal)]
            proposal.tokens.append(unseen[0])
        return proposal

    def rollback(self, length: int) -> None:
        self.model.rollback(min(self.model.length, length))

    def _choose(self, logits: Logits, position: int, sampling: Sampling, proposal: Proposal) -> int:
        if sampling.greedy:
            return int(argmax_tokens(logits))
        probs = shape_probs(logits, sampling)
        proposal.probs.append(probs)
        return draw(probs, uniform(sampling.seed, 0, position, Purpose.DRAFT))
