"""What a drafter is, and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.slots import Slot


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, and when sampling the distribution that each was drawn from."""

    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    errors: list[GenerationError] = field(default_factory=list)  # why nothing more is proposed, and the text ends


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text, and how many tokens to propose after it; what it proposes already goes before them."""

    tokens: Sequence[int]  # prompt and answer so far
    slot: Slot
    sampling: Sampling
    sample: int
    shaper: Shaper
    k: int
    proposal: Proposal  # added to in place


@runtime_checkable
class Drafter(Protocol):
    """Proposes what may follow each of several texts."""

    def limit(self, length: int) -> int:
        """How many tokens can be proposed after `length` tokens."""
        ...

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        """How many tokens of a text are still to be read before anything can be proposed after it."""
        ...

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        """Read so many more tokens of each text."""
        ...

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        """Add up to k tokens to each proposal; returns the calls that it took: texts in the call, and seconds."""
        ...
