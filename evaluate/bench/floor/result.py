"""What `specbench floor` found."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.evaluate.bench.medians import Quartiles
from mxspec.evaluate.result import Result, Value
from mxspec.evaluate.sheet import SPREAD, Column, Sheet, Spread


class Step(Value):
    """One kind of small step, with its working set in the caches."""

    name: str
    seconds: float
    seconds_quartiles: Quartiles
    trials_seconds: tuple[float, ...]


class FloorResult(Result):
    """The small steps of one layer."""

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
