"""The results of one check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_EXAMPLES = 3  # number of differences to show


@dataclass(slots=True)
class Equality:
    """Things that must be equal, bit for bit: the number of comparisons, and the differences."""

    name: str
    unit: str  # what was compared
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def broke_off(self, way: object, error: object) -> None:
        """Count a text that ended in an error as a difference."""
        self.differences.append(f"{way}: the text broke off: {error}")

    @property
    def passed(self) -> bool:
        return not self.differences

    @property
    def detail(self) -> str:
        """The first differences in words."""
        more = len(self.differences) - MOST_EXAMPLES
        return "; ".join(self.differences[:MOST_EXAMPLES]) + (f"; and {more:,} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Chance:
    """A test of a distribution; with a correct engine, the p-value is at most x with probability x."""

    way: str  # the way in which the texts were sampled
    test: str
    unit: str
    compared: int
    p_value: float
    detail: str = ""

    @property
    def name(self) -> str:
        return f"{self.way}: {self.test}"


@dataclass(frozen=True, slots=True)
class Power:
    """The probability that a fault would have shown in this run, and the tokens needed for a probability of 0.95."""

    fault: str
    probability: float
    tokens: int  # in this run
    tokens_needed: int | None  # None if it would never show


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """The results of one part of the certificate; `skipped` names what could not be checked, and why."""

    equalities: Sequence[Equality] = ()
    chances: Sequence[Chance] = ()
    skipped: Sequence[str] = ()
