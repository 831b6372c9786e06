"""Compare mxspec with llama.cpp on the same models and the same cores, alternating.

    python bench/compare_llama_cpp.py --shape tinyllama-1.1b --record build/records/llama_cpp.json
    MXSPEC_ISA=avx2 python bench/compare_llama_cpp.py --ours mxfp6_e2m3/int8
    python bench/compare_llama_cpp.py --speculative --record build/records/llama_cpp_speculative.json
    python bench/compare_llama_cpp.py --serving --record build/records/llama_cpp_serving.json

The peer is built from the source in its Python package (the sdist of llama-cpp-python holds it), for the instruction
set that mxspec uses. Without --speculative, single calls of a model of random weights are timed: values do not matter
for speed, because both programs read every byte of every weight once a call. With --speculative, greedy answers are
timed, plain and with a draft. The pair is the demo pair grown to the size of users' models (`specbench grow`), whose
acceptance is real: as gguf files made by the peer's own converter and quantiser, and as bundles. With --serving, both
programs serve that pair to eight clients at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from llama_cpp import serving as servers
from llama_cpp import shape, speculative
from llama_cpp.build import PACKAGE, build_peer
from llama_cpp.files import grown_pair, held_out_text
from llama_cpp.random_gguf import peer_model
from llama_cpp.result import ShapeResult
from rich.console import Console

from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.bench.shapes.random_bundle import random_bundle
from mxspec.evaluate.finish import report
from mxspec.evaluate.result import Result
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command

CONSOLE = Console(stderr=True)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command(cls=Command)
@click.option("--shape", "shape_name", type=click.Choice(sorted(SHAPES)), default="tinyllama-1.1b", show_default=True)
@click.option(
    "--ours",
    multiple=True,
    default=["mxfp6_e3m2/int16", "mxfp6_e2m3/int8", "mxfp4_e2m1/int8"],
    type=click.Choice(list(shape.OURS)),
    help="Weight format and activations of a bundle of ours (may be repeated).",
)
@click.option("--peer-format", "peer_formats", multiple=True, default=["q6_k"], type=click.Choice(["q6_k", "f16"]))
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default="all cores")
@click.option("--repetitions", default=3, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/llama_cpp"), show_default=True)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--speculative", "speculate", is_flag=True, help="Plain and speculative answers of a real pair instead.")
@click.option("--serving", is_flag=True, help="Servers with 8 clients at once instead, of the same pair.")
@click.option("--target", type=FOLDER, help="Target of the pair. [the demo's, grown into the work folder]")
@click.option("--draft", type=FOLDER, help="Large draft of the pair. [the demo's, grown into the work folder]")
@click.option("--text", type=FILE, help="Text to cut prompts from. [held-out source]")
@click.option("--calibrate", type=FILE, help="Text to round one more target of four bits by. [none]")
@click.option("--prompts", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--windows", type=click.IntRange(min=2), default=20, show_default=True, help="Windows for perplexity.")
def main(
    shape_name: str,
    ours: tuple[str, ...],
    peer_formats: tuple[str, ...],
    threads: int,
    repetitions: int,
    work: Path,
    record: Path | None,
    speculate: bool,
    serving: bool,
    target: Path | None,
    draft: Path | None,
    text: Path | None,
    calibrate: Path | None,
    prompts: int,
    prompt_tokens: int,
    new_tokens: int,
    windows: int,
) -> None:
    """Time mxspec and llama.cpp, alternating."""
    work.mkdir(parents=True, exist_ok=True)
    if not (speculate or serving):
        report(by_calls(shape_name, ours, peer_formats, threads, repetitions, work), False, record)
        return
    binaries = build_peer(work, ops.instruction_set(), servers.TOOLS if serving else speculative.TOOLS)
    pair = grown_pair(work, target, draft)
    held_out = text or held_out_text(work)
    found: Result
    with termination_as_interrupt():  # which ends the server that is open
        if serving:
            lengths = prompt_tokens, new_tokens
            found = servers.compare(work, binaries, pair, held_out, threads, lengths, repetitions, CONSOLE.print)
        else:
            sizes = prompts, prompt_tokens, new_tokens
            found = speculative.compare(
                work, binaries, pair, held_out, threads, sizes, repetitions, windows, calibrate, CONSOLE.print
            )
    report(found, False, record)


def by_calls(
    shape_name: str, ours: Sequence[str], peer_formats: Sequence[str], threads: int, repetitions: int, work: Path
) -> ShapeResult:
    """Single calls of models of random weights."""
    of_shape = SHAPES[shape_name]
    binaries = build_peer(work, ops.instruction_set(), shape.TOOLS)
    runners: dict[str, Callable[[shape.Point], float]] = {}
    for name in ours:
        weight_format, activations = shape.OURS[name]
        bundle = random_bundle(of_shape, work, weight_format, activations=activations)
        runners[name] = shape.Ours(bundle, threads).seconds
    peers = [f"llama.cpp {weights}" for weights in peer_formats]
    for weights, name in zip(peer_formats, peers, strict=True):
        model = peer_model(work, of_shape, weights)
        runners[name] = lambda point, model=model: shape.peer_seconds(binaries, model, point, threads)
    trials = shape.measure(runners, shape.POINTS, repetitions, CONSOLE.print)
    rows = tuple(shape.row_of(trials, point, peers) for point in shape.POINTS)
    return ShapeResult(shape=shape_name, threads=threads, peer=PACKAGE, points=rows)


if __name__ == "__main__":
    main()
