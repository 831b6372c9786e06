"""Lines over a varied setting, with a band for the middle half of the trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxspec.evaluate.bench.medians import quartiles
from mxspec.evaluate.bench.plots.style import COLOURS, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Line:
    """A named series; `low` and `high` bound its band, and `theory` is what a formula predicts."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    theory: Sequence[float] | None = None
    quiet: bool = False  # whether the other lines are compared with this one


def middle_halves(trials: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The lower and upper quartiles of each point."""
    low, high = zip(*map(quartiles, trials), strict=True)
    return list(low), list(high)


def draw_lines(axes: Axes, lines: Sequence[Line], x_label: str, y_label: str, title: str) -> None:
    """Draw all lines in the colours of the style; the axis begins at 0."""
    loud, quiet = [line for line in lines if not line.quiet], [line for line in lines if line.quiet]
    colours = {id(line): COLOURS[number % len(COLOURS)] for number, line in enumerate(loud)}
    if len(quiet) > 1:  # a quiet line for each of the others
        colours |= {id(line): COLOURS[number % len(COLOURS)] for number, line in enumerate(quiet)}
    for line in lines:
        colour = colours.get(id(line), QUIET)
        axes.plot(line.x, line.y, marker="o", color=colour, label=line.name, linestyle=":" if line.quiet else "-")
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        if line.theory is not None:
            axes.plot(line.x, line.theory, linestyle="--", linewidth=1.2, color=colour, label=f"{line.name}: formula")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.set_xticks(sorted({value for line in lines for value in line.x}))
    axes.xaxis.grid(visible=False)
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.05)
    if len(lines) > 1 or lines[0].theory is not None:
        axes.legend(loc="best") if len(axes.lines) <= 4 else axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def draw_one(axes: Axes) -> None:
    """Draw a line at plain decoding."""
    axes.axhline(1, color=QUIET, linewidth=0.9, zorder=0.5)
