"""Pictures of `specbench speculate`: one for each varied setting, with a line for each combination of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mxspec.evaluate.bench.plots.style import PlotLine, draw_lines, draw_one, middle_halves
from mxspec.evaluate.bench.speculate.result import ANSWER_TOKENS, Point, SpeculationPoint, SpeculationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"k": "K, tokens drafted a round", "context": "tokens of the prompt", "batch": "texts at once"}
WORDS = {"k": "K = {}", "context": "{:,} prompt tokens", "batch": "texts: {}", "threads": "threads: {}"}


def pictures(result: SpeculationResult) -> dict[str, Callable[[Axes], None]]:
    """The pictures that the record has points for."""
    found: dict[str, Callable[[Axes], None]] = {}
    if _varies(result.points, "k"):
        found |= {"speedup": partial(speedup, result), "answer": partial(answer_seconds, result)}
    if any(sum(point.evaluated_by_position) for point in result.points):
        found["positions"] = partial(positions, result)
    for axis in ("context", "batch"):
        if _varies(result.points, axis):
            found[axis] = partial(speed_over, result, axis)
    return found


def speedup(result: SpeculationResult, axes: Axes) -> None:
    lines = []
    for name, points in _groups(result.points, "k").items():
        low, high = middle_halves([[trial.speedup for trial in point.trials] for point in points])
        theory = [point.predicted or 0.0 for point in points]
        lines.append(PlotLine(name or "measured", _x(points, "k"), [p.speedup for p in points], low, high, theory))
    draw_one(axes)
    draw_lines(axes, lines, LABELS["k"], "speedup over plain decoding", "Speedup by K")


def answer_seconds(result: SpeculationResult, axes: Axes) -> None:
    """Seconds for an answer, with the 90th and 99th percentiles as upper ends of a band."""
    lines, plain = [], []
    for name, points in _groups(result.points, "k").items():
        seconds = [point.answer_seconds for point in points]
        x, medians = _x(points, "k"), [s.median for s in seconds]
        of = f"{name}, " if name else ""
        lines.append(PlotLine(f"{of}median, to 90th percentile", x, medians, medians, [s.p90 for s in seconds]))
        lines.append(PlotLine(f"{of}99th percentile", x, [s.p99 for s in seconds if s.p99 is not None]))
        base = [point.plain_answer_seconds.median for point in points]
        plain.append(PlotLine(f"{of}plain, median", x, base, quiet=True))
    draw_lines(axes, [*lines, *plain], LABELS["k"], "seconds", f"Time for {ANSWER_TOKENS} tokens by K")


def positions(result: SpeculationResult, axes: Axes) -> None:
    """The share of evaluated tokens that was kept at each position, for the largest K."""
    lines = []
    for name, points in _groups(result.points, "k").items():
        point = points[-1]
        counts = list(zip(point.accepted_by_position, point.evaluated_by_position, strict=True))
        shares = [accepted / evaluated for accepted, evaluated in counts if evaluated]
        lines.append(PlotLine(f"{name or point.drafter}, K = {point.k}", [i + 1 for i in range(len(shares))], shares))
    title = "Acceptance by position" + (f", {lines[0].name}" if len(lines) == 1 else "")
    draw_lines(axes, lines, "position in the round", "accepted of evaluated", title)
    axes.set_ylim(0, 1)


def speed_over(result: SpeculationResult, axis: str, axes: Axes) -> None:
    lines, plain = [], []
    for name, points in _groups(result.points, axis).items():
        low, high = middle_halves([[trial.tokens_per_second for trial in point.trials] for point in points])
        x = _x(points, axis)
        drafted = f"{name}, " if name else ""
        lines.append(PlotLine(f"{drafted}speculating", x, [p.tokens_per_second for p in points], low, high))
        plain.append(PlotLine(f"{drafted}plain", x, [p.plain_tokens_per_second for p in points], quiet=True))
    title = f"Speed over {LABELS[axis]}" + (", all texts together" if axis == "batch" else "")
    draw_lines(axes, [*lines, *plain], LABELS[axis], "tokens a second", title)


def _varies(points: Sequence[SpeculationPoint], axis: str) -> bool:
    return len({getattr(point, axis) for point in points if getattr(point, axis) != "auto"}) > 1


def _groups(points: Sequence[SpeculationPoint], axis: str) -> dict[str, list[SpeculationPoint]]:
    """Points that differ only in `axis`, sorted by it, under a label of their other settings; K by cost is left out."""
    rest = [name for name in Point.model_fields if name != axis and len({getattr(p, name) for p in points}) > 1]
    found: dict[str, list[SpeculationPoint]] = {}
    for point in sorted((p for p in points if getattr(p, axis) != "auto"), key=lambda p: getattr(p, axis)):
        name = ", ".join(WORDS.get(part, f"{part} {{}}").format(getattr(point, part)) for part in rest)
        found.setdefault(name.replace("drafter ", "").replace("bundle ", "").replace(".bundle", ""), []).append(point)
    return found


def _x(points: Sequence[SpeculationPoint], axis: str) -> list[Any]:
    return [getattr(point, axis) for point in points]
