"""Pictures of `specbench speculate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxspec.evaluate.bench.plots.lines import Line, draw_lines, draw_one, quartiles
from mxspec.evaluate.bench.speculate.result import ANSWER_TOKENS, SpeculateResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speedup(result: SpeculateResult, axes: Axes) -> None:
    lines = []
    for drafter, found in result.drafters.items():
        trials = [row.trials_speedup for row in found.rows]
        low, high = quartiles(trials) if all(trials) else (None, None)
        x, y = [row.k for row in found.rows], [row.speedup for row in found.rows]
        lines.append(Line(drafter, x, y, low, high, [row.predicted for row in found.rows]))
    draw_one(axes)
    draw_lines(axes, lines, "K, tokens drafted a round", "speedup over plain decoding", "Speedup by K")


def answer_seconds(result: SpeculateResult, axes: Axes) -> None:
    lines = []
    for drafter, found in result.drafters.items():
        seconds = [row.answer_seconds for row in found.rows]
        x = [row.k for row in found.rows]
        lines.append(Line(f"{drafter}, median", x, [s.median for s in seconds]))
        lines.append(Line(f"{drafter}, 90th percentile", x, [s.p90 for s in seconds]))
    plain = [result.plain.answer_seconds.median] * len(lines[0].x)
    lines.append(Line("plain, median", lines[0].x, plain, quiet=True))
    draw_lines(axes, lines, "K, tokens drafted a round", "seconds", f"Time for {ANSWER_TOKENS} tokens by K")


PICTURES = {"speedup": speedup, "answer": answer_seconds}
