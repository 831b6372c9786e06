"""One quiet style for all pictures, and files that are the same for the same record, byte for byte."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.evaluate.bench.records import Record
from mxspec.formats.errors import MxspecError

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
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise MxspecError("pictures need matplotlib: pip install mxspec[evaluate]") from None


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
        figure.supxlabel(caption(record), x=0.01, ha="left", fontsize=7, color=QUIET)
        for kind in kinds:
            metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(path.with_suffix(f".{kind}"), metadata=metadata)


def caption(record: Record) -> str:
    return "\n".join([*textwrap.wrap(record.command, CAPTION), record.where])
