"""The certificate of `speccheck lossless`: what was compared and tested, as tables, as sentences and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import ClassVar

from pydantic import BaseModel, Field, computed_field

from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value

FALSE_ALARM = 1e-3  # probability that any test fails, for a correct engine
MOST_EXAMPLES = 3  # number of differences to show
SURE = 0.95


class Equality(BaseModel):
    """Things that must be equal, bit for bit: the number of comparisons, and the differences."""

    name: str
    unit: str  # what was compared
    compared: int = 0
    differences: list[str] = Field(default=[], exclude=True)

    def broke_off(self, way: object, error: object) -> None:
        """Count a text that ended in an error as a difference."""
        self.differences.append(f"{way}: the text broke off: {error}")

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties
    @property
    def different(self) -> int:
        return len(self.differences)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return not self.differences

    @computed_field  # type: ignore[prop-decorator]
    @property
    def detail(self) -> str:
        """The first differences in words."""
        more = len(self.differences) - MOST_EXAMPLES
        return "; ".join(self.differences[:MOST_EXAMPLES]) + (f"; and {more:,} more" if more > 0 else "")


class Chance(Value):
    """A test of a distribution; with a correct engine, the p-value is at most x with probability x."""

    way: str = Field(exclude=True)  # the way in which the texts were sampled
    test: str = Field(exclude=True)
    compared: int
    unit: str = "tokens"
    p_value: float
    detail: str = ""
    passed: bool = True

    @computed_field  # type: ignore[prop-decorator]
    @property
    def name(self) -> str:
        return f"{self.way}: {self.test}"


class Power(Value):
    """The probability that a fault would have shown in this run, and the tokens needed for a probability of 0.95."""

    texts: str  # the way in which they were sampled
    fault: str
    probability: float
    tokens: int  # in this run
    tokens_needed: int | None  # None if it would never show

    @property
    def needed(self) -> str:
        return "never shows" if self.tokens_needed is None else f"{self.tokens_needed:,}"


class Certificate(Result):
    """The results of all comparisons and tests; `not_checked` says what could not be checked, and why."""

    kind: ClassVar[str] = "lossless"

    bundle: str
    effort: str
    seed: int
    passed: bool
    false_alarm: float = FALSE_ALARM
    equalities: tuple[Equality, ...]
    tests: tuple[Chance, ...]
    power: tuple[Power, ...]
    not_checked: tuple[str, ...]
    seconds: float

    @property
    def failures(self) -> list[str]:
        """What failed, in words."""
        unequal = [f"{found.name}: {found.detail}" for found in self.equalities if not found.passed]
        unlikely = [
            f"{found.name}: p = {found.p_value:.1e}" + (f", {found.detail}" if found.detail else "")
            for found in self.tests
            if not found.passed
        ]
        return [*unequal, *unlikely]

    def sheets(self) -> Sequence[Sheet]:
        """Tables of comparisons, of tests, and of faults that would have shown."""
        sheets = []
        if self.equalities:
            sheets.append(Sheet("equal, bit for bit", _EQUALITIES, tuple(map(_equality_row, self.equalities))))
        if self.tests:
            tests = (Column(name, ".2g") for name in dict.fromkeys(found.test for found in self.tests))
            columns = (Column("way"), Column("tokens", ","), *tests, Column("result"))
            ways = groupby(self.tests, key=lambda found: found.way)
            rows = tuple(_way_row(way, [*own]) for way, own in ways)
            sheets.append(Sheet("distributed as the target's own: p-values", columns, rows))
        if self.power:
            shown = tuple((power.fault, power.probability, power.needed) for power in self.power)
            sheets.append(Sheet(f"what would have shown in {self.power[0].texts}", _POWERS, shown))
        return sheets

    def sentences(self) -> Iterator[str]:
        """The verdict, and what it covers."""
        if not self.passed:
            yield "Not lossless: what was drafted changed the text."
            yield from (f"  {failure}" for failure in self.failures)
            return
        counts: Counter[str] = Counter()
        for found in self.equalities:
            counts[found.unit] += found.compared
        compared = ", ".join(f"{count:,} {unit}" for unit, count in counts.items())
        tests = f"{len(self.tests)} tests" if self.tests else "no test of a distribution"
        yield f"Lossless as far as {compared} of this pair and {tests} can tell."
        if self.tests:
            yield f"All tests together fail a correct engine in at most {FALSE_ALARM:.1%} of runs."
        if shown := [power.fault for power in self.power if power.probability >= SURE]:
            yield f"In {self.power[0].texts}, this run would have shown: {', '.join(shown)}."
        if unsure := [f"{power.fault} ({power.needed} tokens)" for power in self.power if power.probability < SURE]:
            yield f"It had too few tokens to be sure of: {', '.join(unsure)}; --effort thorough has more."
        yield from (f"Not checked: {skipped}" for skipped in self.not_checked)


_EQUALITIES = (Column("what"), Column("compared"), Column("result"))
_POWERS = (Column("fault"), Column("probability", ".3f"), Column(f"tokens for {SURE}"))


def _equality_row(found: Equality) -> tuple[Cell, ...]:
    result = "equal" if found.passed else f"{found.different:,} different"
    return found.name, f"{found.compared:,} {found.unit}", result


def _way_row(way: str, tests: Sequence[Chance]) -> tuple[Cell, ...]:
    failed = ", ".join(found.test for found in tests if not found.passed)
    return way, tests[0].compared, *(found.p_value for found in tests), f"{failed} failed" if failed else "passed"
