"""Pictures of records that `specbench columns` and an earlier `specbench speculate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bench.documents.old_columns import ColumnsResult
from bench.documents.old_speculate import SpeculateResult
from mxspec.evaluate.bench.plots.draw import pictures_of
from mxspec.evaluate.bench.plots.style import COLOURS, INK, QUIET, PlotLine, draw_lines, draw_one, middle_halves
from mxspec.evaluate.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pictures(result: Result) -> dict[str, Callable[[Axes], None]]:
    """The pictures of a result of any kind, by name."""
    if isinstance(result, SpeculateResult):
        return {"speedup": partial(speedup, result)}
    if isinstance(result, ColumnsResult):
        return {"columns": partial(bars, result)}
    return pictures_of(result)


def bars(result: ColumnsResult, axes: Axes) -> None:
    """Tokens a second of each column, the first at the top, with the factor over the first."""
    names = [column.column for column in result.columns][::-1]
    speeds = [column.tokens_per_second for column in result.columns][::-1]
    low, high = middle_halves([[trial.tokens_per_second for trial in column.trials] for column in result.columns[::-1]])
    colours = [QUIET, COLOURS[0], COLOURS[1], *COLOURS[2:]][: len(names)][::-1]
    axes.barh(names, speeds, height=0.55, color=colours)
    widest = max(max(speeds), max(high))
    for row, (speed, lowest, highest, column) in enumerate(zip(speeds, low, high, result.columns[::-1], strict=True)):
        axes.plot([lowest, highest], [row, row], color=INK, linewidth=1.2, solid_capstyle="butt")
        axes.text(max(speed, highest) + widest * 0.015, row, f"{speed:.1f}  ({column.over_first:.2f} ×)", va="center")
    axes.set(xlabel="tokens a second; the black line spans the middle half of the answers")
    axes.set_title(
        f"{result.bundle.removesuffix('.bundle')}, {result.threads} threads, temperature {result.temperature:g}"
    )
    axes.set_xlim(0, widest * 1.3)
    axes.yaxis.grid(visible=False)


def speedup(result: SpeculateResult, axes: Axes) -> None:
    lines = []
    for drafter, found in result.drafters.items():
        trials = [row.trials_speedup for row in found.rows]
        low, high = middle_halves(trials) if all(trials) else (None, None)
        x, y = [row.k for row in found.rows], [row.speedup for row in found.rows]
        lines.append(PlotLine(drafter, x, y, low, high, [row.predicted for row in found.rows]))
    draw_one(axes)
    draw_lines(axes, lines, "K, tokens drafted a round", "speedup over plain decoding", "Speedup by K")
