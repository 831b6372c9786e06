"""A whole target: the times of its calls and of opening it, and its memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import click

from mxspec.evaluate.bench import calls
from mxspec.evaluate.bench.calls import ModelBench, PairedCalls
from mxspec.evaluate.bench.harness import median, trials_of
from mxspec.evaluate.bench.machine import PairedTimes, ReadCeiling, anonymous_bytes, describe_pairs, pieces_of_file
from mxspec.evaluate.bench.options import bundle_argument, repetitions_option
from mxspec.evaluate.options import Progress, Run, run_options, silent
from mxspec.evaluate.result import SPREAD, Cell, Column, Result, Sheet, Spread, Value
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command
from mxspec.runtime.models.weight_reads import read_bytes

STEPS = (1, 2, 4, 8, 16)  # tokens of a call when decoding or scoring
PREFILLS = (128, 512)

Point = tuple[int, int]  # tokens of a call, and tokens in the cache before the call


class CallTimes(PairedTimes):
    """A call of `tokens` tokens after `cached`; over_one_token is its time over that of a call of one token."""

    tokens: int
    cached: int
    tokens_per_second: float
    bytes_per_second: float
    over_one_token: float


CallCell = tuple[Column, Callable[[CallTimes], Cell]]


class Experts(Value):
    """The experts of a mixture in each layer, and how many of them a token chooses."""

    count: int
    chosen: int

    @classmethod
    def of(cls, entry: ModelEntry) -> Experts | None:
        return None if entry.experts is None else cls(count=entry.experts.count, chosen=entry.experts.chosen)


class ModelResult(Result):
    """A target's calls beside a plain read of the weights that they read, and the cost of opening the target.

    `weight_bytes` are those of the matrices that a call of one token reads. A call of more tokens reads more of the
    `experts` of a mixture: bytes_per_second times seconds.
    """

    kind: ClassVar[str] = "model"
    faster_if_more = ("share_of_read",)
    faster_if_less = ("seconds",)

    bundle: str
    threads: int
    weight_bytes: int
    weights_file_bytes: int
    read_bytes_per_second: float
    read_loop: str
    load_seconds: float
    anonymous_bytes: int
    anonymous_share: float
    experts: Experts | None = None
    calls: tuple[CallTimes, ...]

    def sheets(self) -> Sequence[Sheet]:
        read: CallCell = (Column("MB read", ",.0f", 1e-6), lambda call: call.bytes_per_second * call.seconds)
        columns: list[CallCell] = [
            (Column("tokens a call"), lambda call: f"{call.tokens} after {call.cached:,} cached"),
            *([read] if self.experts else []),
            (Column("ms", ".2f", 1e3), lambda call: Spread.of(call.seconds, call.seconds_quartiles)),
            (Column("tok/s", ".1f"), lambda call: call.tokens_per_second),
            (Column("GB/s", ".1f", 1e-9), lambda call: call.bytes_per_second),
            (Column("of a read", ".0%"), lambda call: Spread.of(call.share_of_read, call.share_quartiles)),
            (Column("over one token", ".2f"), lambda call: call.over_one_token),
        ]
        notes = (
            f"Weights {self.weight_bytes / 1e6:.0f} MB{self._of_one_token()}, "
            f"a plain read {self.read_bytes_per_second / 1e9:.1f} GB/s, "
            f"opened in {self.load_seconds:.2f} s, anonymous memory {self.anonymous_bytes / 1e6:.0f} MB "
            f"({self.anonymous_share:.2f} of the weights file).",
            "Of a read: the share of a call that a plain read of the weights takes. Over one token: the time of the "
            "call over that of one token.",
            SPREAD,
        )
        return [Sheet.of_rows(f"{self.bundle}, {self.threads} threads", self.calls, columns, notes)]

    def _of_one_token(self) -> str:
        """What one token reads of a mixture."""
        if self.experts is None:
            return ""
        chosen, count = self.experts.chosen, self.experts.count
        return (
            f" for one token, with {chosen} of {count} experts in each layer (for more tokens, those that the "
            "operators counted)"
        )


def measure(bundle: Path, repetitions: int, progress: Progress = silent) -> ModelResult:
    """Time all calls, each beside a plain read of the weights' file; medians and quartiles over all calls."""
    before = anonymous_bytes()
    bench = ModelBench(bundle)
    points = points_within(bench.reader.session.capacity)
    ceiling = ReadCeiling(pieces_of_file(bench.weights_path))

    def timed_calls(point: Point) -> PairedCalls:
        tokens, cached = point
        return bench.pairs(tokens, cached, 1 if tokens in PREFILLS else tokens, ceiling)

    trials = trials_of(
        points, timed_calls, repetitions, progress, label=lambda point: "{} tokens after {}".format(*point)
    )
    anonymous = anonymous_bytes() - before
    timed = list(itertools.chain(*trials.values()))
    speeds = [trial.read_bytes / pair.read_seconds for trial in timed for pair in trial.pairs]
    return ModelResult(
        bundle=bundle.name,
        threads=ops.threads(),
        weight_bytes=read_bytes(bench.entry),
        weights_file_bytes=bench.weights_file_bytes,
        read_bytes_per_second=median(speeds),
        read_loop=ceiling.loop,
        load_seconds=bench.load_seconds,
        anonymous_bytes=anonymous,
        anonymous_share=anonymous / bench.weights_file_bytes,
        experts=Experts.of(bench.entry),
        calls=tuple(_describe(point, trials) for point in points),
    )


def points_within(context: int) -> list[Point]:
    """The calls that fit into a context of `context` tokens."""
    steps = [(tokens, cached) for cached in calls.CACHED for tokens in STEPS]
    return [point for point in [*steps, *((tokens, 0) for tokens in PREFILLS)] if sum(point) <= context]


def _describe(point: Point, trials: Mapping[Point, Sequence[PairedCalls]]) -> CallTimes:
    tokens, cached = point
    found = _times(trials[point])
    one = _times(trials.get((1, cached), trials[1, calls.CACHED[0]]))
    return CallTimes(
        tokens=tokens,
        cached=cached,
        tokens_per_second=tokens / found.seconds,
        bytes_per_second=median([trial.read_bytes for trial in trials[point]]) / found.seconds,
        over_one_token=found.seconds / one.seconds,
        **dict(found),
    )


def _times(trials: Sequence[PairedCalls]) -> PairedTimes:
    return describe_pairs([trial.pairs for trial in trials])


@click.command("model", cls=Command)
@bundle_argument
@repetitions_option(5)
@run_options
def bench_model(bundle: Path, repetitions: int, run: Run) -> None:
    """Time a whole target: decoding, scoring, prefill, loading, memory."""
    with run.progress() as progress:
        result = measure(bundle, repetitions, progress)
    run.finish(result)
