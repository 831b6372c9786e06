"""What `specbench compare` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from mxspec.evaluate.result import Result, Value

Verdict = Literal["faster", "slower", "changed", "within noise", "cannot tell", "no trials"]


class ComparedFigure(Value):
    """One figure of both records; `ratio` is the new over the old: of the trials where there are any."""

    figure: str
    old: float
    new: float
    ratio: float | None
    interval: tuple[float, float] | None  # 95 %, of the ratio
    p: float | None  # corrected for the number of figures
    verdict: Verdict  # "cannot tell": fewer than 3 trials, or one that is not positive


class CompareResult(Result):
    """Two records of one benchmark."""

    old: str
    new: str
    warnings: tuple[str, ...]
    figures: tuple[ComparedFigure, ...]

    @property
    def slower(self) -> list[ComparedFigure]:
        return [figure for figure in self.figures if figure.verdict == "slower"]

    def tables(self) -> Sequence[Table]:
        table = Table("figure", "old", "new", "new / old (95 %)", "verdict")
        table.title, table.title_justify = f"{self.old} → {self.new}", "left"
        judged = [figure for figure in self.figures if figure.verdict != "no trials"]
        notes = [f"{len(self.figures) - len(judged)} figures without trials: see --json"] * (judged != [*self.figures])
        notes += [f"warning: {line}" for line in self.warnings]
        table.caption, table.caption_justify = "\n".join(notes), "left"
        for figure in judged:
            ratio = "" if figure.ratio is None else f"{figure.ratio:.3f}"
            if figure.interval is not None:
                ratio += " ({:.3f} to {:.3f})".format(*figure.interval)
            table.add_row(figure.figure, f"{figure.old:.5g}", f"{figure.new:.5g}", ratio, figure.verdict)
        return [table]
