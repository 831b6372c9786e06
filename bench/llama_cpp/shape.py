"""Calls of a model: single steps, scored rows, prompts, eight texts.

The values of weights do not matter for speed: both programs read every byte of every weight once a call. So random
weights do as well as published ones. Of a mixture they read the experts that its tokens choose: both programs get
random tokens, which choose independently where embeddings are large (random_weights.py).
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.llama_cpp.build import PACKAGE
from bench.llama_cpp.result import PointRow, ShapeResult
from mxspec.evaluate.bench.calls import ModelBench
from mxspec.evaluate.bench.harness import median, median_ratio, seconds_of, trials_of
from mxspec.evaluate.options import Progress
from mxspec.formats.weight_format import WEIGHT_FORMATS, Activations, taken_activations
from mxspec.runtime.engine import Engine
from mxspec.runtime.request import Request

TOOLS = ("llama-bench", "llama-batched-bench")


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


def compare(
    model: str,
    files: Mapping[str, Path],
    bundles: Mapping[str, Path],
    builds: Mapping[str, Path],
    threads: int,
    points: Sequence[Point],
    repetitions: int,
    progress: Progress,
) -> ShapeResult:
    """Time every call of one model with the peer's files and our bundles, both by the names of their formats.

    `builds` are folders of the peer's programs, by what they add to its name.
    """
    runners: dict[str, Callable[[Point], float]] = {n: Ours(path, threads).seconds for n, path in bundles.items()}
    peers = []
    for (name, file), (build, binaries) in itertools.product(files.items(), builds.items()):
        peers.append(f"llama.cpp {name}{build}")
        runners[peers[-1]] = partial(peer_seconds, binaries, file, threads)
    trials = measure(runners, points, repetitions, progress)
    rows = tuple(row_of(trials, point, peers) for point in points)
    return ShapeResult(shape=model, threads=threads, peer=PACKAGE, points=rows)


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
