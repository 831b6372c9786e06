"""A whole target: the times of its calls and of opening it, and its memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from mxspec.evaluate.bench.harness import trials_of
from mxspec.evaluate.bench.medians import median
from mxspec.evaluate.bench.memory import anonymous_bytes
from mxspec.evaluate.bench.model import calls
from mxspec.evaluate.bench.model.calls import ModelBench, PairedCalls
from mxspec.evaluate.bench.model.result import CallTimes, Experts, ModelResult
from mxspec.evaluate.bench.read_ceiling import PairedTimes, ReadCeiling, describe_pairs, pieces_of_file
from mxspec.evaluate.progress import Progress, silent
from mxspec.runtime import ops
from mxspec.runtime.models.weight_reads import read_bytes

STEPS = (1, 2, 4, 8, 16)  # tokens of a call when decoding or scoring
PREFILLS = (128, 512)

Point = tuple[int, int]  # tokens of a call, and tokens in the cache before the call


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
