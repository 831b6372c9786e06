"""Calls of a model of llama.cpp and mxspec: single steps, scored rows, prompts, eight texts.

    python -m bench llama-cpp --shape tinyllama-1.1b --record build/records/llama_cpp.json
    MXSPEC_ISA=avx2 python -m bench llama-cpp --ours mxfp6_e2m3/int8
    python -m bench llama-cpp --shape gpt-oss-20b --layers 12 --ours mxfp6_e2m3/int8 --peer-format mxfp4
    python -m bench llama-cpp --gguf model.gguf --bundle model.bundle

The values of weights do not matter for speed: both programs read every byte of every weight once a call. So random
weights do as well as published ones. Of a mixture they read the experts that its tokens choose: both programs get
random tokens, which choose independently where embeddings are large (random_weights.py).
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from bench.llama_cpp.build import PACKAGE, Peer, work_option
from bench.llama_cpp.files import published_files, published_options, require_both
from bench.llama_cpp.random_gguf import PEER_FORMATS, check_format, peer_model
from bench.llama_cpp.result import PointRow, ShapeResult
from bench.measurement import measurement
from bench.shapes.known import DECODERS, AnyDecoder, MixtureShape
from bench.shapes.random_bundle import name_of, random_bundle
from mxspec.evaluate.bench.calls import ModelBench
from mxspec.evaluate.bench.harness import median, median_ratio, seconds_of, trials_of
from mxspec.evaluate.bench.options import Decorator, repetitions_option
from mxspec.evaluate.options import Progress
from mxspec.formats.weight_format import WEIGHT_FORMATS, Activations, taken_activations
from mxspec.runtime.engine import Engine
from mxspec.runtime.request import Request

TOOLS = ("llama-bench", "llama-batched-bench")
S = TypeVar("S", bound=AnyDecoder)


@dataclass(frozen=True, slots=True)
class Point:
    """One call to time: `tokens` tokens after `cached`; of one text, or one token of each of several texts."""

    name: str
    tokens: int
    cached: int
    texts: int = 1


POINTS = (
    Point("decode", 1, 128),
    Point("score 8", 8, 128),
    Point("decode, 1,000 cached", 1, 1000),
    Point("score 8, 1,000 cached", 8, 1000),
    Point("prefill 128", 128, 0),
    Point("decode, 8 texts", 8, 128, texts=8),
)
OF_A_MIXTURE = (
    Point("decode", 1, 128),
    Point("score 8", 8, 128),
    Point("prefill 128", 128, 0),
    Point("decode, 8 texts", 8, 128, texts=8),
)
OF_A_FILE = (
    Point("decode", 1, 128),
    Point("score 8", 8, 128),
    Point("prefill 512", 512, 0),
    Point("prefill 2048", 2048, 0),
    Point("decode, 8 texts", 8, 128, texts=8),
)
BATCH_TOKENS = 32  # tokens of each text, if there are several
TEXTS, BATCH_CACHED = 8, 128  # their number at most, and the tokens before each


# --- the peer ---------------------------------------------------------------------------------------------------


def peer_seconds(
    binaries: Path, model: Path, threads: int, point: Point, options: Sequence[str] = (), runs: int = 3
) -> float:
    """Seconds of one call of `point.tokens` tokens, as its own bench tools measure it (median of `runs`)."""
    if point.texts > 1:
        return peer_batch_seconds(binaries, model, point, threads)
    prompt, generate = (0, 16) if point.tokens == 1 else (point.tokens, 0)
    work = ["-p", str(prompt), "-n", str(generate), "-d", str(point.cached), "-r", str(runs)]
    command = [str(binaries / "llama-bench"), "-m", str(model), "-t", str(threads), "-o", "json", *work, *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (result,) = json.loads(output)
    return point.tokens / median(result["samples_ts"])


def peer_batch_seconds(binaries: Path, model: Path, point: Point, threads: int) -> float:
    """Seconds of a step of `point.texts` texts, the mean over BATCH_TOKENS of them."""
    work = ["-npp", str(point.cached), "-ntg", str(BATCH_TOKENS), "-npl", str(point.texts), "-c", "4096"]
    tool = [str(binaries / "llama-batched-bench"), "-m", str(model), "-t", str(threads), "--output-format", "jsonl"]
    output = subprocess.run([*tool, *work], check=True, capture_output=True, text=True).stdout
    (result,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return point.tokens / float(result["speed_tg"])


# --- ours -------------------------------------------------------------------------------------------------------


OURS: dict[str, tuple[str, Activations]] = {
    f"{name}/{activations}": (name, activations) for name in WEIGHT_FORMATS for activations in taken_activations(name)
}


class Ours:
    """A bundle, opened to be timed."""

    def __init__(self, bundle: Path, threads: int) -> None:
        self._calls, self._engine = ModelBench(bundle, threads), Engine(bundle, slots=TEXTS)
        vocab_size = self._engine.bundle.manifest.tokenizer.vocab_size
        self._prompts = np.random.default_rng(0).integers(0, vocab_size, (TEXTS, BATCH_CACHED)).tolist()

    def seconds(self, point: Point) -> float:
        """Seconds of one call; of several texts, of a step of the engine."""
        if point.texts > 1:
            self._write(point.texts, 1)  # reads the prompts
            return seconds_of(lambda: self._write(point.texts, BATCH_TOKENS)) / BATCH_TOKENS
        return self._calls.seconds(point.tokens, point.cached, 1 if point.cached == 0 else point.tokens)

    def _write(self, texts: int, tokens: int) -> None:
        settings: dict[str, Any] = {"max_new_tokens": tokens, "k": 0, "temperature": 0, "ignore_eos": True}
        requests = [Request(prompt=prompt, **settings) for prompt in self._prompts[:texts]]
        for handle in self._engine.submit_all(requests):
            handle.result()


# --- the comparison ---------------------------------------------------------------------------------------------


Trials = Mapping[tuple[Point, str], Sequence[float]]
"""Seconds of a call, by point and runner."""


def measure(
    runners: Mapping[str, Callable[[Point], float]], points: Sequence[Point], repetitions: int, progress: Progress
) -> Trials:
    """Time every point with every runner; all runners alternate within each repetition."""

    def trial(case: tuple[Point, str]) -> float:
        point, name = case
        seconds = runners[name](point)
        progress(f"{point.name}, {name}: {point.tokens / seconds:.1f} tok/s")
        return seconds

    return trials_of(list(itertools.product(points, runners)), trial, repetitions)


def row_of(trials: Trials, point: Point, peers: Sequence[str]) -> PointRow:
    """Medians; `speedup` is ours over each peer, of the trials of one repetition, the median of these ratios."""
    taken = {name: tuple(seconds) for (at, name), seconds in trials.items() if at == point}
    return PointRow(
        point=point.name,
        tokens=point.tokens,
        cached=point.cached,
        tokens_per_second={name: point.tokens / median(seconds) for name, seconds in taken.items()},
        speedup={
            name: {peer: median_ratio(taken[peer], seconds) for peer in peers}
            for name, seconds in taken.items()
            if name not in peers
        },
        trials_seconds=taken,
    )


# --- the command ------------------------------------------------------------------------------------------------


def shape_options(shapes: Collection[str]) -> Decorator:
    """--shape, --layers, --ours and --peer-format: a model of random weights in formats of both programs."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option(
                "--peer-format", "peer_formats", multiple=True, default=["q6_k"], type=click.Choice(PEER_FORMATS)
            ),
            click.option(
                "--ours",
                multiple=True,
                default=["mxfp6_e3m2/int16", "mxfp6_e2m3/int8", "mxfp4_e2m1/int8"],
                type=click.Choice(list(OURS)),
                help="Weight format and activations of a bundle of ours (repeatable).",
            ),
            click.option("--layers", type=click.IntRange(min=1), help="Fewer layers than the shape has."),
            click.option(
                "--shape",
                "shape_name",
                type=click.Choice(sorted(shapes)),
                default="tinyllama-1.1b",
                show_default=True,
                help="Known shape.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def fewer_layers(of_shape: S, layers: int | None) -> S:
    """The shape with so many layers, or its own."""
    return of_shape if layers is None else replace(of_shape, layers=layers)


@measurement
@shape_options(DECODERS)
@published_options
@repetitions_option(3)
@work_option
def main(
    shape_name: str,
    layers: int | None,
    ours: tuple[str, ...],
    peer_formats: tuple[str, ...],
    gguf: Path | None,
    bundles: tuple[Path, ...],
    repetitions: int,
    work: Path,
    progress: Progress,
) -> ShapeResult:
    """Time calls of a model of random weights, or of a published one, in formats of both programs, alternating.

    The experts of gpt-oss are MXFP4 in both programs, whatever the format of its other matrices. Where the machine has
    AMX, the peer is timed with its AMX kernels and without.
    """
    require_both(gguf, bundles)
    points: Sequence[Point] = OF_A_FILE
    peer = Peer.open(work, *TOOLS, *(() if gguf is None else ("llama-quantize",)))
    if gguf is not None:
        model, files = gguf.name, published_files(peer, gguf)
        opened = {bundle.stem: bundle for bundle in bundles}
    else:
        of_shape = fewer_layers(DECODERS[shape_name], layers)
        model, points = name_of(of_shape), OF_A_MIXTURE if isinstance(of_shape, MixtureShape) else POINTS
        for weights in peer_formats:
            check_format(of_shape, weights)
        opened = {name: random_bundle(of_shape, work, OURS[name][0], activations=OURS[name][1]) for name in ours}
        files = {weights: peer_model(work, of_shape, weights) for weights in peer_formats}
    runners: dict[str, Callable[[Point], float]] = {n: Ours(path, peer.threads).seconds for n, path in opened.items()}
    peers = []
    for (name, file), (build, binaries) in itertools.product(files.items(), peer.builds.items()):
        peers.append(f"llama.cpp {name}{build}")
        runners[peers[-1]] = partial(peer_seconds, binaries, file, peer.threads)
    trials = measure(runners, points, repetitions, progress)
    rows = tuple(row_of(trials, point, peers) for point in points)
    return ShapeResult(shape=model, threads=peer.threads, peer=PACKAGE, points=rows)
