"""What `specbench head` found."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.evaluate.bench.medians import Quartiles
from mxspec.evaluate.result import Result, Value
from mxspec.evaluate.sheet import SPREAD, Column, Sheet, Spread


class HeadTimes(Value):
    """Steps of a draft whose head has `rows` rows; over_whole is the median ratio to steps with the whole head."""

    rows: int
    head_bytes: int
    read_bytes: int
    seconds: float
    seconds_quartiles: Quartiles
    over_whole: float
    over_whole_quartiles: Quartiles
    trials_seconds: tuple[float, ...]


class HeadResult(Result):
    """A draft's step, call and greedy choice, with each head."""

    shape: str
    format: str
    threads: int
    cached: int
    heads: tuple[HeadTimes, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("rows of the head", ","),
            Column("head, MB", ",.0f", 1e-6),
            Column("read a step, MB", ",.0f", 1e-6),
            Column("ms a step", ".2f", 1e3),
            Column("over the whole head", ".2f"),
        )
        rows = tuple(
            (
                head.rows,
                head.head_bytes,
                head.read_bytes,
                Spread.of(head.seconds, head.seconds_quartiles),
                Spread.of(head.over_whole, head.over_whole_quartiles),
            )
            for head in self.heads
        )
        title = f"a draft of {self.shape}'s shape, {self.format}, {self.threads} threads, {self.cached:,} cached tokens"
        note = "A step is a call of one token, and the choice of the next. The ratio is of steps in the same turn."
        return [Sheet(title, columns, rows, (note, SPREAD))]
