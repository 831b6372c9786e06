"""Calls after thousands of tokens, with each kind of key-value caches of both programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.calls.caches import open_model
from bench.llama_cpp import shape
from bench.llama_cpp.build import PACKAGE
from bench.llama_cpp.result import ShapeResult
from bench.llama_cpp.shape import Point
from bench.shapes.known import RANDOM, Shape
from bench.shapes.random_bundle import name_of
from mxspec.evaluate.bench.calls import CallBench
from mxspec.evaluate.bench.harness import seconds_of
from mxspec.evaluate.options import Progress
from mxspec.formats.caches import CacheKind
from mxspec.recipes.recipe import TargetRecipe
from mxspec.runtime import ops

TOOLS = ("llama-bench",)
KINDS: tuple[CacheKind, ...] = ("float16", "mxint8")
PEER_KINDS = {  # its attention without -fa does not take values in q8_0
    "f16": ("-fa", "off"),
    "f16, flash": ("-fa", "on"),
    "q8_0, flash": ("-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"),
}
ROWS = 8  # tokens of a call that scores several


def points(cached: int) -> tuple[Point, ...]:
    """The calls: one token, and several, after `cached` tokens; and reading so many."""
    return (
        Point(f"decode, {cached:,} cached", 1, cached),
        Point(f"score {ROWS}, {cached:,} cached", ROWS, cached),
        Point(f"prefill {cached:,}", cached, 0),
    )


def our_seconds(bench: CallBench, point: Point) -> float:
    """Seconds of one call, or of reading a prompt in calls of the largest size."""
    if point.cached:
        return bench.seconds(point.tokens, point.cached)
    bench.fill(0)
    ids = bench.random_ids(point.tokens)
    return seconds_of(lambda: bench.reader.append(ids, 1))


def peer_seconds(binaries: Path, model: Path, threads: int, options: Sequence[str], point: Point) -> float:
    """Seconds of a call with caches by `options`; a prompt is read once."""
    runs = 3 if point.cached else 1
    return shape.peer_seconds(binaries, model, threads, point, (*options, "--no-warmup"), runs)


def compare(
    of_shape: Shape,
    files: Mapping[str, Path],
    formats: Sequence[str],
    builds: Mapping[str, Path],
    work: Path,
    threads: int,
    cached: int,
    repetitions: int,
    progress: Progress,
) -> ShapeResult:
    """Time calls after `cached` tokens with the peer's files and a model of ours in each of `formats`.

    The models are of random weights; ours are written below `work`.
    """
    ops.set_threads(threads)
    runners: dict[str, Callable[[Point], float]] = {}
    wide = replace(of_shape, context_length=cached + ROWS)
    for name in formats:
        weight_format, activations = shape.OURS[name]
        target = TargetRecipe(checkpoint=RANDOM, format=weight_format, activations=activations)
        for kind in KINDS:
            bench = open_model(wide, target, kind, work / f"{name.replace('/', '-')}-{kind}")
            runners[f"{name}, {kind}"] = partial(our_seconds, bench)
    peers = []
    for (name, file), (build, binaries), (peer_kind, options) in itertools.product(
        files.items(), builds.items(), PEER_KINDS.items()
    ):
        peers.append(f"llama.cpp {name}{build}, {peer_kind}")
        runners[peers[-1]] = partial(peer_seconds, binaries, file, threads, options)
    trials = shape.measure(runners, points(cached), repetitions, progress)
    rows = tuple(shape.row_of(trials, point, peers) for point in points(cached))
    return ShapeResult(shape=name_of(of_shape), threads=threads, peer=PACKAGE, points=rows)
