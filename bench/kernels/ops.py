"""The packed product, attention and experts alone, each call beside a plain read of as many bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click
import numpy as np
from numpy.typing import NDArray

from bench.kernels.experts import FORMATS as EXPERTS_FORMATS
from bench.kernels.experts import ROWS as EXPERTS_ROWS
from bench.kernels.experts import measure_experts
from bench.kernels.ops_result import HEAD_SIZE, HEADS, KV_HEADS, AttentionTimes, OpsResult, ProductTimes
from bench.measurement import measurement
from bench.shapes.random_weights import random_tiles
from mxspec.evaluate.bench.harness import median, trials_of
from mxspec.evaluate.bench.machine import PIECE_BYTES, Pair, ReadCeiling, describe_pairs
from mxspec.evaluate.bench.options import repetitions_option
from mxspec.evaluate.options import Progress, silent
from mxspec.formats.errors import MxspecError
from mxspec.formats.native import ISAS
from mxspec.formats.weight_format import ACTIVATIONS, WEIGHT_FORMATS, Activations, packed_shape
from mxspec.runtime import ops
from mxspec.runtime.ops.timing import time_attention, time_matmul

FORMATS = tuple(WEIGHT_FORMATS)
ROWS = (1, 2, 4, 8, 16, 128, 512)
BEYOND_CACHES = 256 << 20  # bytes that calls work on alternately: more than the caches hold
SHAPE = (5632, 2048)  # n, k of TinyLlama-1.1B's gate projection
CACHED = (128, 1000)
ATTENTION_ROWS = (1, 8)
PREFILL_ROWS = 64  # from here on a trial takes long enough alone


@dataclass(frozen=True, slots=True)
class Case:
    """One product to time."""

    isa: str
    weight_format: str
    activations: Activations  # "int16" for fp16_tiles, whose rows stay float32
    rows: int

    def __str__(self) -> str:
        return f"{self.rows} rows by {self.weight_format}, {self.activations}, {self.isa}"


def random_matrices(weight_format: str, n: int, k: int) -> NDArray[np.uint8]:
    """uint8[matrices, n_tiles, row_tile_bytes] of random weights, about as large as trained ones."""
    shape = packed_shape(weight_format, n, k)
    count = -(-BEYOND_CACHES // int(np.prod(shape)))
    rng = np.random.default_rng(0)
    return np.tile(random_tiles(weight_format, n, k, rng), (count, 1, 1))


def cases(
    isas: Sequence[str],
    formats: Sequence[str],
    activations: Sequence[Activations],
    rows: Sequence[int],
) -> list[Case]:
    """Every product to time; the scalar reference only for one row, because it is there to be correct, not fast."""
    return [
        Case(isa, name, kind, m)
        for name in formats
        for kind in (WEIGHT_FORMATS[name].activations or ACTIVATIONS[:1])
        for isa in isas
        for m in rows
        if (kind in activations or not WEIGHT_FORMATS[name].activations) and (isa != "scalar" or m == 1)
    ]


def available(isas: Sequence[str]) -> list[str]:
    """The instruction sets among `isas` that this machine has."""
    return [isa for isa in isas if isa in ops.available_isas()]


def measure(
    isas: Sequence[str] = ISAS,
    formats: Sequence[str] = FORMATS,
    activations: Sequence[Activations] = ACTIVATIONS,
    rows: Sequence[int] = ROWS,
    repetitions: int = 5,
    progress: Progress = silent,
    experts_rows: Sequence[int] = EXPERTS_ROWS,
) -> OpsResult:
    """Time every case, each call beside a plain read; medians and quartiles over all calls."""
    n, k = SHAPE
    values = np.random.default_rng(1).standard_normal((max(rows), k), np.float32)
    ceilings = {name: ReadCeiling(_pieces(random_matrices(name, n, k))) for name in formats}

    def trial(case: Case) -> list[Pair]:
        return time_product(case, ceilings[case.weight_format], values[: case.rows].copy())

    trials = trials_of(cases(available(isas), formats, activations, rows), trial, repetitions, progress)
    bytes_of = {name: ceiling.pieces[0].nbytes for name, ceiling in ceilings.items()}
    reads = [bytes_of[c.weight_format] / p.read_seconds for c, found in trials.items() for p in itertools.chain(*found)]
    return OpsResult(
        threads=ops.threads(),
        n=n,
        k=k,
        read_bytes_per_second=median(reads),
        read_loops={name: ceiling.loop for name, ceiling in ceilings.items()},
        products=tuple(_describe(case, found, bytes_of[case.weight_format], n * k) for case, found in trials.items()),
        attention=tuple(measure_attention(isas, repetitions, progress)),
        experts=tuple(
            measure_experts(
                available(isas),
                [name for name in EXPERTS_FORMATS if name in formats],
                activations,
                experts_rows,
                repetitions,
                progress,
            )
        ),
    )


def time_product(case: Case, ceiling: ReadCeiling, values: NDArray[np.float32]) -> list[Pair]:
    """Products with every matrix (with three if that takes long enough), each beside a read of another matrix."""
    n, k = SHAPE
    shape = packed_shape(case.weight_format, n, k)
    slow = case.rows >= PREFILL_ROWS or case.isa == "scalar"
    pairs = []
    for piece in range(min(3, len(ceiling.pieces)) if slow else len(ceiling.pieces)):
        seconds = time_matmul(
            case.weight_format,
            ceiling.pieces[piece].reshape(1, *shape),
            n,
            values,
            activations=case.activations,
            isa=case.isa,
            repetitions=1,
        )
        assert seconds is not None
        pairs.append(Pair(float(seconds[0]), ceiling.seconds_after(piece)))
    return pairs


def _describe(case: Case, repetitions: Sequence[Sequence[Pair]], packed_bytes: int, weights: int) -> ProductTimes:
    found = describe_pairs(repetitions)
    return ProductTimes(
        isa=case.isa,
        format=case.weight_format,
        activations=case.activations if WEIGHT_FORMATS[case.weight_format].activations else "float32",
        rows=case.rows,
        bytes_per_second=packed_bytes / found.seconds,
        multiply_adds_per_second=case.rows * weights / found.seconds,
        **dict(found),
    )


def measure_attention(isas: Sequence[str], repetitions: int, progress: Progress) -> list[AttentionTimes]:
    """Time attention over the caches of many layers, more than the machine's own caches hold."""
    values = np.full(BEYOND_CACHES // 2, 0.1, np.float16)
    found: list[AttentionTimes] = []
    for rows, cached in itertools.product(ATTENTION_ROWS, CACHED):
        progress(f"attention, {rows} rows after {cached}")
        caches = caches_of(values, cached + rows)
        ceiling = ReadCeiling(_pieces(caches.view(np.uint8)))
        trial = partial(time_layers, caches, ceiling, rows, cached)
        trials = trials_of([isa for isa in available(isas) if isa != "scalar"], trial, repetitions)
        found += [_over_read(isa, rows, cached, pairs) for isa, pairs in trials.items()]
    return found


def caches_of(values: NDArray[np.float16], tokens: int) -> NDArray[np.float16]:
    """float16[pieces, layers, 2, 1, kv_heads, tokens, head_size] of full caches, about PIECE_BYTES a piece."""
    of_layer = (2, 1, KV_HEADS, tokens, HEAD_SIZE)
    size = int(np.prod(of_layer))
    layers = max(PIECE_BYTES // (size * values.itemsize), 1)
    pieces = values.size // (size * layers)
    return values[: pieces * layers * size].reshape(pieces, layers, *of_layer)


def time_layers(caches: NDArray[np.float16], ceiling: ReadCeiling, rows: int, cached: int, isa: str) -> list[Pair]:
    """For each piece, the median seconds of a layer, and the seconds of reading as many bytes."""
    pairs = []
    for piece, layers in enumerate(caches):
        seconds = time_attention(layers, "float16", HEAD_SIZE, HEADS, rows, cached, isa=isa, repetitions=len(layers))
        assert seconds is not None
        pairs.append(Pair(median(seconds), ceiling.seconds_after(piece) / len(layers)))
    return pairs


def _over_read(isa: str, rows: int, cached: int, repetitions: Sequence[Sequence[Pair]]) -> AttentionTimes:
    found = describe_pairs(repetitions)
    low, high = found.share_quartiles
    return AttentionTimes(
        isa=isa,
        rows=rows,
        cached=cached,
        over_read=1 / found.share_of_read,
        over_read_quartiles=(1 / high, 1 / low),
        **dict(found),
    )


def _pieces(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return data.reshape(len(data), -1)


def require_isas(isas: Sequence[str]) -> None:
    """Raises MxspecError for an instruction set that this machine does not have."""
    has = available(ISAS)
    for isa in isas:
        if isa not in has:
            raise MxspecError(f"--isa {isa}: this machine does not have it; it has {', '.join(has)}")


@measurement
@click.option(
    "--isa",
    "isas",
    multiple=True,
    type=click.Choice(ISAS),
    help="Time only this instruction set. May be given several times.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Time only this format. May be given several times.",
)
@click.option(
    "--activations",
    multiple=True,
    type=click.Choice(ACTIVATIONS),
    help="Time only products that round their inputs to this type. May be given several times.",
)
@click.option(
    "--rows",
    multiple=True,
    type=click.IntRange(min=1),
    help="Time only calls of this number of rows. May be given several times.",
)
@repetitions_option(5)
def main(
    isas: tuple[str, ...],
    formats: tuple[str, ...],
    activations: tuple[Activations, ...],
    rows: tuple[int, ...],
    repetitions: int,
    progress: Progress,
) -> OpsResult:
    """Time the packed product, attention and experts alone, on every instruction set, each call beside a plain read."""
    require_isas(isas)
    chosen = isas or ISAS, formats or FORMATS, activations or ACTIVATIONS, rows or ROWS
    return measure(*chosen, repetitions, progress, rows or EXPERTS_ROWS)
