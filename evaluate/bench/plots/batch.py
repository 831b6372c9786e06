"""The picture of `specbench batch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxspec.evaluate.bench.batch.result import BatchResult
from mxspec.evaluate.bench.plots.lines import Line, draw_lines, middle_halves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speed(result: BatchResult, axes: Axes) -> None:
    texts = [row.texts for row in result.rows]
    trials = [row.trials.tokens_per_second_by_k.get("auto", []) for row in result.rows]
    low, high = middle_halves(trials) if all(trials) else (None, None)
    lines = [
        Line("K by load", texts, [row.tokens_per_second_by_k["auto"] for row in result.rows], low, high),
        Line("best fixed K", texts, [row.tokens_per_second_by_k[str(row.best_k)] for row in result.rows]),
        Line("plain", texts, [row.tokens_per_second for row in result.rows], quiet=True),
    ]
    draw_lines(axes, lines, "texts at once", "tokens a second", "Speed over texts at once, all together")
