"""Time the smallest steps of a call of one row: parallel regions, nodes that do nothing, small operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import click

from bench.kernels.nodes import Node, attention, gate, norm
from bench.measurement import measurement
from bench.shapes.known import SHAPES, Shape
from mxspec.evaluate.bench.harness import Quartiles, median, quartiles, seconds_of, trials_of
from mxspec.evaluate.bench.options import repetitions_option
from mxspec.evaluate.options import Progress, silent
from mxspec.evaluate.result import SPREAD, Column, Result, Sheet, Spread, Value
from mxspec.runtime import ops
from mxspec.runtime.ops.timing import time_region

NODES = 100  # of a graph
RUNS = 100  # of a graph in a trial, and of regions without a pause
LITTLE = 16  # values of a norm that does nearly nothing
PAUSES = (0, 50, 2000)  # microseconds before a region: the last is longer than threads wait awake
CACHED = (0, 128)  # tokens


class Step(Value):
    """One kind of small step, with its working set in the caches."""

    name: str
    seconds: float
    seconds_quartiles: Quartiles
    trials_seconds: tuple[float, ...]


class FloorResult(Result):
    """The small steps of one layer."""

    kind: ClassVar[str] = "floor"
    faster_if_less = ("seconds",)

    shape: str
    threads: int
    steps: tuple[Step, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (Column("step"), Column("us", ".2f", 1e6))
        rows = tuple((step.name, Spread.of(step.seconds, step.seconds_quartiles)) for step in self.steps)
        note = (
            "A parallel region is an empty job of all threads. A node's time is what one more of its kind adds to a "
            "call of ONNX Runtime, with everything that it reads in the caches."
        )
        return [Sheet(f"one row, {self.shape}'s shape, {self.threads} threads", columns, rows, (note, SPREAD))]


def measure(shape: Shape, repetitions: int, progress: Progress = silent) -> FloorResult:
    """Time the steps of one layer of this shape."""
    cases: dict[str, Callable[[], float]] = {_region_name(pause): partial(_region, pause) for pause in PAUSES}
    nodes = {
        f"a node that does nothing (a norm of {LITTLE} values)": norm(LITTLE),
        f"a norm of {shape.hidden_size:,} values": norm(shape.hidden_size),
        f"a gate of {shape.intermediate_size:,} values": gate(shape.intermediate_size),
        **{f"attention after {cached:,} cached tokens": attention(shape, cached) for cached in CACHED},
    }
    cases |= {name: _timer(node) for name, node in nodes.items()}
    trials = trials_of(list(cases), lambda name: cases[name](), repetitions, progress, warm=True)
    return FloorResult(shape=shape.name, threads=ops.threads(), steps=tuple(map(_step, trials, trials.values())))


def _step(name: str, seconds: Sequence[float]) -> Step:
    return Step(name=name, seconds=median(seconds), seconds_quartiles=quartiles(seconds), trials_seconds=tuple(seconds))


def _region_name(pause: int) -> str:
    return f"a parallel region, {pause:,} us after another" if pause else "a parallel region, right after another"


def _region(pause: int) -> float:
    runs = RUNS if pause < 1000 else RUNS // 10
    return median(time_region(pause * 1e-6, runs))


def _timer(node: Node) -> Callable[[], float]:
    """Seconds of a node: of a graph with many, less those of a graph with one."""
    one, many = node.chain(1), node.chain(NODES + 1)
    return lambda: (_median_of(many) - _median_of(one)) / NODES


def _median_of(call: Callable[[], object]) -> float:
    return median([seconds_of(call) for _ in range(RUNS)])


@measurement
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="smollm2-135m", show_default=True)
@repetitions_option(15)
def main(shape: str, repetitions: int, progress: Progress) -> FloorResult:
    """Time what bounds small models: parallel regions, nodes that do nothing, small operators of one row."""
    return measure(SHAPES[shape], repetitions, progress)
