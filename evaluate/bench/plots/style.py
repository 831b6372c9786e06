"""One quiet style for all pictures, and files that are the same for the same record, byte for byte.

Lines over a varied setting have a band for the middle half of the trials.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.evaluate.bench.harness import quartiles
from mxspec.evaluate.record import Record
from mxspec.formats.errors import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, GRID = "#24292f", "#6e7781", "#d8dee4"
COLOURS = ("#1f5fa8", "#d1603d", "#2e8b6f", "#8a5aab", "#b58900", "#5b6770")
STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.labelsize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "font.family": "DejaVu Sans",  # which matplotlib brings
    "font.size": 10,
    "svg.fonttype": "path",
    "svg.hashsalt": "mxspec",
}
SIZE, DOTS = (8.0, 4.5), 120  # inches, and dots an inch: 960 pixels, a little more than GitHub shows
CAPTION = 150  # characters of a line


def require_matplotlib() -> None:
    """Raises MxspecError if matplotlib is not installed."""
    with needs("evaluate", "a picture"):
        import matplotlib  # noqa: F401


def save(path: Path, record: Record, draw: Callable[[Axes], None], kinds: tuple[str, ...] = ("png", "svg")) -> None:
    """Draw one pair of axes, with the record's command and machine below, as files of the given kinds."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    style: Any = dict(matplotlib.rcParamsDefault) | STYLE
    with matplotlib.rc_context(style):
        figure = Figure(figsize=SIZE, dpi=DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        draw(axes)
        caption = "\n".join([*textwrap.wrap(record.command, CAPTION), record.where])
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=7, color=QUIET)
        for kind in kinds:
            metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(path.with_suffix(f".{kind}"), metadata=metadata)


@dataclass(frozen=True, slots=True)
class PlotLine:
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


def draw_lines(axes: Axes, lines: Sequence[PlotLine], x_label: str, y_label: str, title: str) -> None:
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
