"""The picture of `speccheck accuracy --format`: what each format takes, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxspec.evaluate.accuracy.result import Accuracy, Figures, name_of
from mxspec.evaluate.bench.plots.style import COLOURS, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sizes(result: Accuracy, axes: Axes) -> None:
    """KL divergence over the size of the matrices, with ratios: the bundle's target, and other formats to nearest."""
    _points(axes, [result], "the bundle", COLOURS[1], left=True)
    _points(axes, result.beside, "to nearest", QUIET, left=False)
    axes.set(xlabel="size of the matrices (MB)", ylabel="KL divergence from fp16 (nats)", yscale="log")
    axes.set_title(f"{result.bundle}, {result.tokens:,} tokens")
    axes.margins(x=0.2, y=0.15)
    axes.legend(loc="best")


def _points(axes: Axes, figures: tuple[Figures, ...] | list[Accuracy], label: str, colour: str, *, left: bool) -> None:
    points = [(each.matrix_bytes / 1e6, each.mean_kl_divergence, each) for each in figures if each.matrix_bytes]
    axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], color=colour, label=label)
    offset, side = ((-6, 0), "right") if left else ((6, 0), "left")
    for x, y, each in points:
        text = f"{name_of(each)} ({each.ratio:.3f})"
        axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", ha=side, va="center", fontsize=9)
