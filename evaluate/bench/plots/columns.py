"""The picture of `specbench columns`: a bar for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxspec.evaluate.bench.columns.result import ColumnsResult
from mxspec.evaluate.bench.plots.lines import middle_halves
from mxspec.evaluate.bench.plots.style import COLOURS, INK, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
