"""What `specbench compare` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from mxspec.evaluate.result import Column, Result, Sheet, Value

Verdict = Literal["faster", "slower", "changed", "within noise", "cannot tell", "no trials"]


class ComparedFigure(Value):
    """One figure of both records; `ratio` is new over old, by the trials if there are any."""

    figure: str
    old: float
    new: float
    ratio: float | None
    interval: tuple[float, float] | None  # 95 %, of the ratio
    p: float | None  # corrected for the number of figures
    verdict: Verdict  # "cannot tell": fewer than 3 trials, or one that is not positive


class CompareResult(Result):
    """Two records of one benchmark."""

    kind: ClassVar[str] = "compare"

    old: str
    new: str
    warnings: tuple[str, ...]
    figures: tuple[ComparedFigure, ...]

    @property
    def slower(self) -> list[ComparedFigure]:
        return [figure for figure in self.figures if figure.verdict == "slower"]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("figure"),
            Column("old", ".5g"),
            Column("new", ".5g"),
            Column("new / old (95 %)"),
            Column("verdict"),
        )
        judged = [figure for figure in self.figures if figure.verdict != "no trials"]
        rows = tuple((each.figure, each.old, each.new, _ratio(each), each.verdict) for each in judged)
        without = len(self.figures) - len(judged)
        notes = [f"{without} figures without trials: see --json"] if without else []
        notes += [f"warning: {line}" for line in self.warnings]
        return [Sheet(f"{self.old} → {self.new}", columns, rows, tuple(notes))]


def _ratio(figure: ComparedFigure) -> str | None:
    if figure.ratio is None:
        return None
    interval = "" if figure.interval is None else " ({:.3f} to {:.3f})".format(*figure.interval)
    return f"{figure.ratio:.3f}{interval}"
