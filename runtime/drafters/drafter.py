"""What a drafter is, and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, and when sampling the distribution that each was drawn from."""

    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)


class Drafter(Protocol):
    """Proposes what may follow `tokens`; called once a round with all tokens of the sequence so far."""

    def limit(self, length: int) -> int:
        """How many tokens can be proposed behind `length` tokens."""
        ...

    def prefill(self, prompt: Sequence[int]) -> None:
        """Begin a text: read its prompt."""
        ...

    def propose(self, tokens: Sequence[int], k: int, sampling: Sampling) -> Proposal: ...

    def rollback(self, length: int) -> None:
        """The sequence is `length` tokens long now, all of them known; what was drafted beyond is dropped."""
        ...
