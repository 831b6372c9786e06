"""What a verifier is: a pure function from a scored round to what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.verifiers.verdict import Verdict


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
