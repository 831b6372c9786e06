"""What one check found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MOST_EXAMPLES = 3  # of differences that are shown
Progress = Callable[[str], None]  # gets what is being done, in words


@dataclass(slots=True)
class Equality:
    """Things that have to be equal, bit for bit: how many were compared, and where they were not."""

    name: str
    unit: str  # what was compared
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def broke_off(self, way: object, error: object) -> None:
        """A text that ended in an error is a difference, too."""
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
    """A test that a right engine fails with a probability of `p_value` or less."""

    way: str  # in which texts were sampled
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
    """How sure a fault would have shown in the rows of this run, and in how many tokens with a probability of .95."""

    fault: str
    probability: float
    tokens: int  # that this run had
    tokens_needed: int | None  # None where it would never show


@dataclass(frozen=True, slots=True)
class Part:
    """All that one part of the certificate found; `skipped` says what could not be checked, and why."""

    equalities: Sequence[Equality] = ()
    chances: Sequence[Chance] = ()
    skipped: Sequence[str] = ()
