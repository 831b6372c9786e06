"""Pictures of `specbench speculate`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mxspec.evaluate.bench.medians import Percentiles
from mxspec.evaluate.bench.plots.lines import Line, draw_lines, draw_one, middle_halves
from mxspec.evaluate.bench.speculate.result import ANSWER_TOKENS, SpeculateResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speedup(result: SpeculateResult, axes: Axes) -> None:
    lines = []
    for drafter, found in result.drafters.items():
        trials = [row.trials_speedup for row in found.rows]
        low, high = middle_halves(trials) if all(trials) else (None, None)
        x, y = [row.k for row in found.rows], [row.speedup for row in found.rows]
        lines.append(Line(drafter, x, y, low, high, [row.predicted for row in found.rows]))
    draw_one(axes)
    draw_lines(axes, lines, "K, tokens drafted a round", "speedup over plain decoding", "Speedup by K")


def answer_seconds(result: SpeculateResult, plain: Percentiles, axes: Axes) -> None:
    lines = []
    for drafter, found in result.drafters.items():
        timed = [(row.k, row.answer_seconds) for row in found.rows if row.answer_seconds is not None]
        x, seconds = [k for k, _ in timed], [seconds for _, seconds in timed]
        lines.append(Line(f"{drafter}, median", x, [s.median for s in seconds]))
        lines.append(Line(f"{drafter}, 90th percentile", x, [s.p90 for s in seconds]))
    lines.append(Line("plain, median", lines[0].x, [plain.median] * len(lines[0].x), quiet=True))
    draw_lines(axes, lines, "K, tokens drafted a round", "seconds", f"Time for {ANSWER_TOKENS} tokens by K")


def pictures(result: SpeculateResult) -> dict[str, Callable[[Axes], None]]:
    """The pictures that the result has figures for."""
    found: dict[str, Callable[[Axes], None]] = {"speedup": partial(speedup, result)}
    if result.plain.answer_seconds is not None:
        found["answer"] = partial(answer_seconds, result, result.plain.answer_seconds)
    return found
