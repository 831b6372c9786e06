"""Compare mxspec with llama.cpp on the same models and the same cores, alternating.

    python -m bench llama-cpp --shape tinyllama-1.1b --record build/records/llama_cpp.json
    MXSPEC_ISA=avx2 python -m bench llama-cpp --ours mxfp6_e2m3/int8
    python -m bench llama-cpp --shape olmoe-1b-7b --ours mxfp6_e2m3/int8
    python -m bench llama-cpp --shape gpt-oss-20b --layers 12 --ours mxfp6_e2m3/int8 --peer-format mxfp4
    python -m bench llama-cpp --cached 8192 --ours mxfp6_e2m3/int8
    python -m bench llama-cpp --gguf model.gguf --bundle model.bundle
    python -m bench llama-cpp --gguf model.gguf --bundle model.bundle --accuracy --text sample.txt
    python -m bench llama-cpp --speculative --record build/records/llama_cpp_speculative.json
    python -m bench llama-cpp --serving --record build/records/llama_cpp_serving.json

The peer is built from the source in its Python package (the sdist of llama-cpp-python holds it), for the instruction
set that mxspec uses; single calls are timed with its AMX kernels and without, where the machine has AMX. Without
--speculative, single calls of a model of random weights are timed: values do not matter for speed, because both
programs read every byte of every weight once a call; of a mixture's experts, those that random tokens choose. The
experts of gpt-oss are MXFP4 in both programs, whatever the format of its other matrices. With --cached, calls after so
many tokens are timed, with each kind of key-value caches of both programs. With --gguf, the peer runs that file, and
the same weights in Q8_0 and Q6_K, beside the bundles that speccompile made of it. With --accuracy, the formats of both
programs are compared with the file in 16 bits, in perplexity and KL divergence. With --speculative, greedy answers are
timed, plain and with a draft. The pair is the demo pair grown to the size of users' models (`specbench grow`), whose
acceptance is real: as gguf files made by the peer's own converter and quantiser, and as bundles. With --serving, both
programs serve that pair, or the model of --gguf, to eight clients at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import click
from rich.console import Console

from bench.llama_cpp import accuracy as formats
from bench.llama_cpp import caches, shape, speculative
from bench.llama_cpp import serving as servers
from bench.llama_cpp.build import build_peers
from bench.llama_cpp.files import F16, grown_pair, held_out_text, packed_again
from bench.llama_cpp.random_gguf import PEER_FORMATS, check_format, peer_model
from bench.llama_cpp.server import Server
from bench.shapes.known import DECODERS, SHAPES, AnyDecoder, MixtureShape, Shape
from bench.shapes.random_bundle import name_of, random_bundle
from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.evaluate.options import Run
from mxspec.evaluate.result import Result
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command

CONSOLE = Console(stderr=True)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command(cls=Command)
@click.option(
    "--shape",
    "shape_name",
    type=click.Choice(sorted(DECODERS)),
    default="tinyllama-1.1b",
    show_default=True,
)
@click.option("--layers", type=click.IntRange(min=1), help="Fewer layers than the shape has.")
@click.option(
    "--ours",
    multiple=True,
    default=["mxfp6_e3m2/int16", "mxfp6_e2m3/int8", "mxfp4_e2m1/int8"],
    type=click.Choice(list(shape.OURS)),
    help="Weight format and activations of a bundle of ours (may be repeated).",
)
@click.option("--peer-format", "peer_formats", multiple=True, default=["q6_k"], type=click.Choice(PEER_FORMATS))
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default="all cores")
@click.option("--repetitions", default=3, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/llama_cpp"), show_default=True)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--cached", type=click.IntRange(min=1), help="Calls after so many tokens instead, with all caches.")
@click.option("--gguf", type=FILE, help="A published model to time instead of random weights; needs --bundle.")
@click.option("--bundle", "bundles", type=FOLDER, multiple=True, help="A bundle of the model of --gguf (repeatable).")
@click.option("--speculative", "speculate", is_flag=True, help="Plain and speculative answers of a real pair instead.")
@click.option("--serving", is_flag=True, help="Servers with 8 clients at once instead, of the same pair.")
@click.option("--accuracy", is_flag=True, help="Perplexity and KL divergence of the model of --gguf instead.")
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
    layers: int | None,
    ours: tuple[str, ...],
    peer_formats: tuple[str, ...],
    threads: int,
    repetitions: int,
    work: Path,
    record: Path | None,
    cached: int | None,
    gguf: Path | None,
    bundles: tuple[Path, ...],
    speculate: bool,
    serving: bool,
    accuracy: bool,
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
    if (gguf is None) == bool(bundles):
        raise click.UsageError("--gguf and --bundle go together")
    require_model(gguf, shape_name, speculate=speculate, accuracy=accuracy, cached=cached is not None)
    modes = ((accuracy, formats), (serving, servers), (speculate, speculative), (cached, caches))
    mode: ModuleType = next((module for wanted, module in modes if wanted), shape)
    tools = mode.TOOLS if gguf is None else (*mode.TOOLS, "llama-quantize")
    peer = Peer(work, build_peers(work, ops.instruction_set(), tools), threads)
    with termination_as_interrupt():  # which ends the server that is open
        if speculate:
            found: Result = speculative.compare(
                work,
                peer.binaries,
                grown_pair(work, target, draft),
                text or held_out_text(work),
                threads,
                (prompts, prompt_tokens, new_tokens),
                repetitions,
                windows,
                calibrate,
                CONSOLE.print,
            )
        elif accuracy and gguf is not None:
            found = compare_formats(peer, gguf, bundles, text or held_out_text(work), windows)
        elif serving:
            opened = pair_servers(peer, target, draft) if gguf is None else model_servers(peer, gguf, bundles)
            lengths, held_out = (prompt_tokens, new_tokens), text or held_out_text(work)
            found = servers.compare(*opened, held_out, threads, lengths, repetitions, CONSOLE.print)
        elif cached is not None:
            found = compare_caches(
                peer, fewer_layers(SHAPES[shape_name], layers), peer_formats, ours, cached, repetitions
            )
        elif gguf is not None:
            files, compiled = published_models(peer, gguf, bundles)
            found = compare_calls(peer, gguf.name, files, compiled, shape.OF_A_FILE, repetitions)
        else:
            of_shape = fewer_layers(DECODERS[shape_name], layers)
            found = compare_shape(peer, of_shape, peer_formats, ours, repetitions)
    Run(None, json_output=False, record=record).finish(found)


def require_model(gguf: Path | None, shape_name: str, *, speculate: bool, accuracy: bool, cached: bool) -> None:
    """Raises UsageError where a mode does not go with the model."""
    if gguf is not None and speculate:
        raise click.UsageError("--speculative times a pair, not the model of --gguf")
    if accuracy and gguf is None:
        raise click.UsageError("--accuracy needs --gguf")
    if cached and (gguf is not None or shape_name not in SHAPES):
        raise click.UsageError("--cached times a --shape that is no mixture")


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp's programs by what they add to its name, the folder for files, and the threads of both programs."""

    work: Path
    builds: Mapping[str, Path]
    threads: int

    @property
    def binaries(self) -> Path:
        """The programs of the first build."""
        return self.builds[""]


S = TypeVar("S", bound=AnyDecoder)


def fewer_layers(of_shape: S, layers: int | None) -> S:
    """The shape with so many layers, or its own."""
    return of_shape if layers is None else replace(of_shape, layers=layers)


Models = tuple[dict[str, Path], dict[str, Path]]  # the peer's files and our bundles, by the names of their formats
Servers = tuple[Mapping[str, Server], Mapping[str, Path]]  # the peer's servers and our bundles, by the same names


def compare_shape(
    peer: Peer, of_shape: Shape | MixtureShape, peer_formats: Sequence[str], ours: Sequence[str], repetitions: int
) -> Result:
    """Single calls of a model of random weights."""
    points = shape.OF_A_MIXTURE if isinstance(of_shape, MixtureShape) else shape.POINTS
    files, compiled = random_models(of_shape, peer_formats, ours, peer.work)
    return compare_calls(peer, name_of(of_shape), files, compiled, points, repetitions)


def compare_calls(
    peer: Peer,
    model: str,
    files: Mapping[str, Path],
    compiled: Mapping[str, Path],
    points: Sequence[shape.Point],
    repetitions: int,
) -> Result:
    """Single calls of one model in all formats."""
    return shape.compare(model, files, compiled, peer.builds, peer.threads, points, repetitions, CONSOLE.print)


def compare_caches(
    peer: Peer, of_shape: Shape, peer_formats: Sequence[str], ours: Sequence[str], cached: int, repetitions: int
) -> Result:
    """Calls of a model of random weights after `cached` tokens, with all kinds of caches."""
    files = {name: peer_model(peer.work, of_shape, name) for name in peer_formats}
    with tempfile.TemporaryDirectory(dir=peer.work) as folder:
        return caches.compare(
            of_shape, files, ours, peer.builds, Path(folder), peer.threads, cached, repetitions, CONSOLE.print
        )


def pair_servers(peer: Peer, target: Path | None, draft: Path | None) -> Servers:
    """The servers of a pair."""
    return servers.pair_servers(peer.work, peer.binaries, grown_pair(peer.work, target, draft), peer.threads)


def model_servers(peer: Peer, gguf: Path, bundles: Sequence[Path]) -> Servers:
    """The servers of a published model."""
    files, compiled = published_models(peer, gguf, bundles)
    opened = {name: servers.file_server(peer.work, peer.binaries, file, peer.threads) for name, file in files.items()}
    return opened, compiled


def random_models(
    of_shape: Shape | MixtureShape, peer_formats: Sequence[str], ours: Sequence[str], work: Path
) -> Models:
    """One shape with random weights. Raises MxspecError for a format of the peer's that the shape cannot have."""
    for weights in peer_formats:
        check_format(of_shape, weights)
    compiled = {}
    for name in ours:
        weight_format, activations = shape.OURS[name]
        compiled[name] = random_bundle(of_shape, work, weight_format, activations=activations)
    return {weights: peer_model(work, of_shape, weights) for weights in peer_formats}, compiled


def compare_formats(peer: Peer, gguf: Path, bundles: Sequence[Path], text: Path, windows: int) -> Result:
    """The peer's formats of a published model and our bundles of it, each beside its 16-bit form."""
    packed = {name: packed_again(peer.work, peer.binaries, gguf, name) for name in formats.PEER_FORMATS}
    whole = packed_again(peer.work, peer.binaries, gguf, F16)
    return formats.compare(gguf.name, whole, packed, bundles, peer.binaries, text, windows, peer.threads, CONSOLE.print)


def published_models(peer: Peer, gguf: Path, bundles: Sequence[Path]) -> Models:
    """A published model: the peer's file as it is and in two more of its formats."""
    again = {name: packed_again(peer.work, peer.binaries, gguf, name) for name in ("Q8_0", "Q6_K")}
    return {gguf.stem.rpartition(".")[2]: gguf, **again}, {bundle.stem: bundle for bundle in bundles}
