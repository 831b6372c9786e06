"""Compare mxspec with llama.cpp on the same shape and the same cores, alternating.

    python bench/compare_llama_cpp.py --shape tinyllama-1.1b --record build/records/llama_cpp.json
    MXSPEC_ISA=avx2 python bench/compare_llama_cpp.py --ours mxfp6_e2m3/int8

The peer is built from the source in its Python package (the sdist of llama-cpp-python holds it), for the instruction
set that mxspec uses; its model is a gguf file with random weights and no vocabulary, which its own bench tool runs.
Ours are bundles with random weights. Values do not matter for speed: both read every byte of every weight once a call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mxspec.evaluate.bench.batch.bench import BatchBench
from mxspec.evaluate.bench.model.calls import ModelBench
from mxspec.evaluate.bench.shapes.known import SHAPES, Shape
from mxspec.evaluate.bench.shapes.random_bundle import random_bundle
from mxspec.evaluate.record import write_record
from mxspec.formats.weight_format import WEIGHT_FORMATS, Activations, taken_activations
from mxspec.runtime import ops

PACKAGE = "llama-cpp-python==0.3.36"
CONSOLE = Console(stderr=True)

# One Q6_K block: 256 weights in 210 bytes (ggml-common.h, block_q6_K): 128 low and 64 high bits, 16 scales, an fp16.
Q6_K_WEIGHTS, Q6_K_BYTES = 256, 210


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to time: `tokens` in one call after `cached` tokens; of one text, or one of each of several."""

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
BATCH_TOKENS = 32  # written of each text, where there are several


# --- the peer ---------------------------------------------------------------------------------------------------


NATIVE = "-DGGML_NATIVE=ON"
BUILD_OPTIONS = {"avx2": ("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON")}


def build_peer(folder: Path, isa: str | None) -> Path:
    """The folder of llama-bench and llama-batched-bench, built from the sdist if they are not there yet.

    They use what the machine has, or AVX2 where mxspec was made to use that.
    """
    build = folder / (f"build-{isa}" if isa in BUILD_OPTIONS else "build")
    binaries = build / "bin"
    tools = ("llama-bench", "llama-batched-bench")
    if not all((binaries / tool).exists() for tool in tools):
        source = source_of(folder) or fetch_source(folder)
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF")
        instructions = BUILD_OPTIONS.get(isa or "", (NATIVE,))
        subprocess.run(["cmake", "-S", source, "-B", build, *options, *instructions], check=True)
        jobs = str(len(os.sched_getaffinity(0)))
        subprocess.run(["cmake", "--build", build, "--target", *tools, "--parallel", jobs], check=True)
    return binaries


def fetch_source(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run([*pip, "-d", folder, PACKAGE], check=True)
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = source_of(folder)
    assert source is not None
    return source


def source_of(folder: Path) -> Path | None:
    return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"), None)


def random_q6_k(rng: np.random.Generator, n: int, k: int) -> np.ndarray[Any, Any]:
    """uint8[n, bytes]: valid Q6_K blocks of random values of the size that trained weights have."""
    blocks = rng.integers(0, 256, (n, k // Q6_K_WEIGHTS, Q6_K_BYTES), dtype=np.uint8)
    blocks[..., -2:] = np.frombuffer(np.float16(1e-5).tobytes(), dtype=np.uint8)
    return blocks.reshape(n, -1)


def random_f16(rng: np.random.Generator, n: int, k: int) -> np.ndarray[Any, Any]:
    return (rng.standard_normal((n, k), dtype=np.float32) * 0.02).astype(np.float16)


def write_gguf(path: Path, shape: Shape, gguf: Any, weights: str) -> None:
    """A llama-architecture gguf file of the given shape with random matrices in Q6_K or F16."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden_size // shape.heads)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, n: int, k: int) -> None:
        if weights == "q6_k":
            writer.add_tensor(name, random_q6_k(rng, n, k), raw_dtype=gguf.GGMLQuantizationType.Q6_K)
        else:
            writer.add_tensor(name, random_f16(rng, n, k))

    hidden, inner = shape.hidden_size, shape.intermediate_size
    kv = hidden // shape.heads * shape.kv_heads
    matrix("token_embd.weight", shape.vocab_size, hidden)
    matrix("output.weight", shape.vocab_size, hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(hidden, np.float32))
        for name, n, k in (
            ("attn_q", hidden, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            matrix(f"{block}{name}.weight", n, k)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def peer_model(folder: Path, shape: Shape, weights: str) -> Path:
    path = folder / f"{shape.name}-{weights}.gguf"
    if not path.exists():
        source = source_of(folder)
        assert source is not None
        sys.path.insert(0, str(source / "gguf-py"))
        import gguf

        partial = path.with_suffix(".new")
        write_gguf(partial, shape, gguf, weights)
        partial.rename(path)
    return path


def peer_seconds(binaries: Path, model: Path, point: Point, threads: int) -> float:
    """Seconds of one call of `point.tokens` tokens, as its own bench tools measure it (median of its repetitions)."""
    if point.texts > 1:
        return peer_batch_seconds(binaries, model, point, threads)
    prompt, generate = (0, 16) if point.tokens == 1 else (point.tokens, 0)
    work = ["-p", str(prompt), "-n", str(generate), "-d", str(point.cached), "-r", "3"]
    command = [str(binaries / "llama-bench"), "-m", str(model), "-t", str(threads), "-o", "json", *work]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (result,) = json.loads(output)
    return point.tokens / statistics.median(result["samples_ts"])


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
    """A bundle of random weights, opened to be timed."""

    def __init__(self, bundle: Path, threads: int) -> None:
        self._calls, self._texts = ModelBench(bundle, threads), BatchBench(bundle, BATCH_TOKENS, acceptance=0.0)

    def seconds(self, point: Point) -> float:
        """Seconds of one call; of several texts, of a step of the engine."""
        if point.texts > 1:
            return self._texts.plain(point.texts).seconds / BATCH_TOKENS
        return self._calls.seconds(point.tokens, point.cached, 1 if point.cached == 0 else point.tokens)


# --- the comparison ---------------------------------------------------------------------------------------------


def measure(
    runners: dict[str, Callable[[Point], float]], points: tuple[Point, ...], repetitions: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds a call for every point and runner, all runners alternating within each repetition."""
    trials: dict[str, dict[str, list[float]]] = {p.name: {r: [] for r in runners} for p in points}
    for repetition in range(repetitions):
        for point in points:
            for name, run in runners.items():
                trials[point.name][name].append(run(point))
            medians = {n: statistics.median(t) for n, t in trials[point.name].items()}
            shown = ", ".join(f"{n} {point.tokens / s:.1f} tok/s" for n, s in medians.items())
            CONSOLE.print(f"[{repetition + 1}/{repetitions}] {point.name}: {shown}")
    return trials


def summarise(
    trials: dict[str, dict[str, list[float]]], points: tuple[Point, ...], peers: list[str]
) -> list[dict[str, Any]]:
    """Medians; `speedup` is ours over each peer, of the trials of one repetition, the median of these ratios."""
    rows = []
    for point in points:
        taken = trials[point.name]
        ours = [name for name in taken if name not in peers]
        rows.append(
            {
                "point": point.name,
                "tokens": point.tokens,
                "cached": point.cached,
                "tokens_per_second": {n: point.tokens / statistics.median(s) for n, s in taken.items()},
                "speedup": {n: {peer: ratio(taken[peer], taken[n]) for peer in peers} for n in ours},
                "trials_seconds": taken,
            }
        )
    return rows


def ratio(longer: list[float], shorter: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(longer, shorter, strict=True))


def as_table(rows: list[dict[str, Any]], runners: list[str]) -> Table:
    table = Table(title="tokens/s (ours: over the peer)", title_justify="left")
    for column in ("", *runners):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        cells = []
        for name in runners:
            over = ", ".join(f"{speedup:.2f} x" for speedup in row["speedup"].get(name, {}).values())
            cells.append(f"{row['tokens_per_second'][name]:.1f}" + (f" ({over})" if over else ""))
        table.add_row(row["point"], *cells)
    return table


@click.command()
@click.option("--shape", "shape_name", type=click.Choice(sorted(SHAPES)), default="tinyllama-1.1b", show_default=True)
@click.option(
    "--ours",
    multiple=True,
    default=["mxfp6_e3m2/int16", "mxfp6_e2m3/int8", "mxfp4_e2m1/int8"],
    type=click.Choice(list(OURS)),
    help="Weight format and activations of a bundle of ours (may be repeated).",
)
@click.option("--peer-format", "peer_formats", multiple=True, default=["q6_k"], type=click.Choice(["q6_k", "f16"]))
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default="all cores")
@click.option("--repetitions", default=3, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/llama_cpp"), show_default=True)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path))
def main(
    shape_name: str,
    ours: tuple[str, ...],
    peer_formats: tuple[str, ...],
    threads: int,
    repetitions: int,
    work: Path,
    record: Path | None,
) -> None:
    """Time mxspec and llama.cpp, alternating, on a model of random weights."""
    shape = SHAPES[shape_name]
    work.mkdir(parents=True, exist_ok=True)
    binaries = build_peer(work, ops.instruction_set())
    runners: dict[str, Callable[[Point], float]] = {}
    for name in ours:
        weight_format, activations = OURS[name]
        runners[name] = Ours(random_bundle(shape, work, weight_format, activations=activations), threads).seconds
    peers = [f"llama.cpp {weights}" for weights in peer_formats]
    for weights, name in zip(peer_formats, peers, strict=True):
        model = peer_model(work, shape, weights)
        runners[name] = lambda point, model=model: peer_seconds(binaries, model, point, threads)
    trials = measure(runners, POINTS, repetitions)
    rows = summarise(trials, POINTS, peers)
    CONSOLE.print(as_table(rows, list(runners)))
    if record is not None:
        write_record(record, {"shape": shape_name, "threads": threads, "peer": PACKAGE, "points": rows})


if __name__ == "__main__":
    main()
