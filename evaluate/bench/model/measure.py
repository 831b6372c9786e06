"""A whole target: the times of its calls and of opening it, and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mxspec.evaluate.bench.harness import trials_of
from mxspec.evaluate.bench.medians import median
from mxspec.evaluate.bench.memory import anonymous_bytes
from mxspec.evaluate.bench.model import calls
from mxspec.evaluate.bench.model.calls import ModelBench
from mxspec.evaluate.bench.model.result import CallTimes, ModelResult
from mxspec.evaluate.bench.read_ceiling import Pair, ReadCeiling, describe_pairs, pieces_of_file
from mxspec.evaluate.progress import Progress, silent
from mxspec.runtime import ops

STEPS = (1, 2, 4, 8, 16)  # tokens of a call when decoding or scoring
PREFILLS = (128, 512)

Point = tuple[int, int]  # tokens of a call, and tokens in the cache before the call


def measure(bundle: Path, repetitions: int, progress: Progress = silent) -> ModelResult:
    """Time all calls, each beside a plain read of the weights' file; medians and quartiles over all calls."""
    before = anonymous_bytes()
    bench = ModelBench(bundle)
    points = points_within(bench.reader.session.capacity)
    ceiling = ReadCeiling(pieces_of_file(bench.weights_path))

    def trial(point: Point) -> list[Pair]:
        tokens, cached = point
        return bench.pairs(tokens, cached, 1 if tokens in PREFILLS else tokens, ceiling)

    trials = trials_of(points, trial, repetitions, progress, label=lambda point: "{} tokens after {}".format(*point))
    anonymous = anonymous_bytes() - before
    reads = [pair.read_seconds for found in trials.values() for pairs in found for pair in pairs]
    return ModelResult(
        bundle=bundle.name,
        threads=ops.threads(),
        weight_bytes=bench.weight_bytes,
        weights_file_bytes=bench.weights_file_bytes,
        read_bytes_per_second=bench.weight_bytes / median(reads),
        read_loop=ceiling.loop,
        load_seconds=bench.load_seconds,
        anonymous_bytes=anonymous,
        anonymous_share=anonymous / bench.weights_file_bytes,
        calls=tuple(_describe(bench.weight_bytes, point, trials) for point in points),
    )


def points_within(context: int) -> list[Point]:
    """The calls that fit into a context of `context` tokens."""
    steps = [(tokens, cached) for cached in calls.CACHED for tokens in STEPS]
    return [point for point in [*steps, *((tokens, 0) for tokens in PREFILLS)] if sum(point) <= context]


def _describe(weight_bytes: int, point: Point, trials: Mapping[Point, Sequence[Sequence[Pair]]]) -> CallTimes:
    tokens, cached = point
    found = describe_pairs(trials[point])
    one = describe_pairs(trials.get((1, cached), trials[1, calls.CACHED[0]]))
    return CallTimes(
        tokens=tokens,
        cached=cached,
        tokens_per_second=tokens / found.seconds,
        bytes_per_second=weight_bytes / found.seconds,
        over_one_token=found.seconds / one.seconds,
        **dict(found),
    )
