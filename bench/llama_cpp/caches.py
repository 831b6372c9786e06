"""Calls of llama.cpp and mxspec after thousands of tokens, with each kind of key-value caches of both programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench.calls.caches import open_model
from bench.llama_cpp import shape
from bench.llama_cpp.build import PACKAGE, Peer, work_option
from bench.llama_cpp.random_gguf import peer_model
from bench.llama_cpp.result import ShapeResult
from bench.llama_cpp.shape import Point
from bench.measurement import measurement
from bench.shapes.known import RANDOM, SHAPES
from bench.shapes.random_bundle import name_of
from mxspec.evaluate.bench.calls import CallBench
from mxspec.evaluate.bench.harness import seconds_of
from mxspec.evaluate.bench.options import repetitions_option
from mxspec.evaluate.options import Progress
from mxspec.formats.caches import CacheKind
from mxspec.recipes.recipe import TargetRecipe

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


@measurement
@shape.shape_options(SHAPES)
@click.option("--cached", type=click.IntRange(min=1), default=8192, show_default=True, help="Tokens before a call.")
@repetitions_option(3)
@work_option
def main(
    shape_name: str,
    layers: int | None,
    ours: tuple[str, ...],
    peer_formats: tuple[str, ...],
    cached: int,
    repetitions: int,
    work: Path,
    progress: Progress,
) -> ShapeResult:
    """Time calls of a model of random weights after `cached` tokens, with each kind of caches of both programs."""
    peer = Peer.open(work, *TOOLS)
    of_shape = shape.fewer_layers(SHAPES[shape_name], layers)
    wide = replace(of_shape, context_length=cached + ROWS)
    runners: dict[str, Callable[[Point], float]] = {}
    peers = []
    for weights, (build, binaries), (kind, options) in itertools.product(
        peer_formats, peer.builds.items(), PEER_KINDS.items()
    ):
        peers.append(f"llama.cpp {weights}{build}, {kind}")
        file = peer_model(work, of_shape, weights)
        runners[peers[-1]] = partial(peer_seconds, binaries, file, peer.threads, options)
    with TemporaryDirectory(dir=work) as folder:
        for name, own in itertools.product(ours, KINDS):
            weight_format, activations = shape.OURS[name]
            target = TargetRecipe(checkpoint=RANDOM, format=weight_format, activations=activations)
            bench = open_model(wide, target, own, Path(folder) / f"{name.replace('/', '-')}-{own}")
            runners[f"{name}, {own}"] = partial(our_seconds, bench)
        trials = shape.measure(runners, points(cached), repetitions, progress)
    rows = tuple(shape.row_of(trials, point, peers) for point in points(cached))
    return ShapeResult(shape=name_of(of_shape), threads=peer.threads, peer=PACKAGE, points=rows)
