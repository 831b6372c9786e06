"""The packed product and attention alone, beside what the memory gives in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.random_weights import random_tiles
from mxspec.formats.weight_format import WEIGHT_FORMATS, Activations, packed_shape
from mxspec.runtime import ops
from mxspec.runtime.ops.timing import ISAS, time_attention, time_matmul, time_read

FORMATS = tuple(WEIGHT_FORMATS)
ACTIVATIONS: tuple[Activations, ...] = ("int16", "int8")
ROWS = (1, 2, 4, 8, 16, 128, 512)
BEYOND_CACHES = 256 << 20  # bytes of all matrices that are read in turns, so that none is still in a cache
SHAPE = (5632, 2048)  # n, k of TinyLlama-1.1B's gate projection
HEADS, KV_HEADS, HEAD_SIZE = 32, 4, 64  # of TinyLlama-1.1B
LAYERS = 88  # caches that take turns: four times as many as it has, so that none is still in a cache of the machine
CACHED = (128, 1000)
ATTENTION_ROWS = (1, 8)
PREFILL_ROWS = 64  # from here on a trial takes long enough alone


@dataclass(frozen=True, slots=True)
class Case:
    """One product to time."""

    isa: str
    weight_format: str
    activations: Activations  # of fp16_tiles, whose rows stay float32, "int16"
    rows: int


def random_matrices(weight_format: str, n: int, k: int) -> NDArray[np.uint8]:
    """uint8[matrices, n_tiles, row_tile_bytes] of random weights, of the size that trained ones have."""
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
    """Every product to time; the scalar reference only for one row, since it is there to be right."""
    return [
        Case(isa, name, kind, m)
        for name in formats
        for kind in (WEIGHT_FORMATS[name].activations or ACTIVATIONS[:1])
        for isa in isas
        for m in rows
        if (kind in activations or not WEIGHT_FORMATS[name].activations) and (isa != "scalar" or m == 1)
    ]


def available(isas: Sequence[str]) -> list[str]:
    """Those of the instruction sets that this machine has."""
    return [isa for isa in isas if isa in ops.available_isas()]


def measure(
    isas: Sequence[str] = ISAS,
    formats: Sequence[str] = FORMATS,
    activations: Sequence[Activations] = ACTIVATIONS,
    rows: Sequence[int] = ROWS,
    repetitions: int = 5,
    told: Callable[[str], object] = lambda text: None,
) -> dict[str, Any]:
    """Time every case and the plain read loop in turns; medians, and every trial."""
    n, k = SHAPE
    matrices = {f: random_matrices(f, n, k) for f in formats}
    wanted = cases(available(isas), formats, activations, rows)
    values = np.random.default_rng(1).standard_normal((max(rows), k), np.float32)
    trials: dict[Case, list[float]] = {case: [] for case in wanted}
    reads: list[float] = []
    for repetition in range(repetitions):
        told(f"repetition {repetition + 1} of {repetitions}")
        for weight_format, packed in matrices.items():
            reads.append(packed.nbytes / float(np.median(time_read(packed, 3))))
            for case in wanted:
                if case.weight_format == weight_format:
                    calls = 3 if case.rows >= PREFILL_ROWS or case.isa == "scalar" else len(packed)
                    seconds = time_matmul(
                        weight_format,
                        packed,
                        n,
                        values[: case.rows].copy(),
                        activations=case.activations,
                        isa=case.isa,
                        repetitions=calls,
                    )
                    assert seconds is not None
                    trials[case].append(float(np.median(seconds)))
    bandwidth = float(np.median(reads))
    return {
        "attention": measure_attention(isas, repetitions, told),
        "threads": ops.threads(),
        "n": n,
        "k": k,
        "read_bytes_per_second": bandwidth,
        "read_trials": reads,
        "products": [_describe(case, trials[case], matrices, bandwidth, (n, k)) for case in wanted],
    }


def _describe(
    case: Case,
    trials: list[float],
    matrices: dict[str, NDArray[np.uint8]],
    bandwidth: float,
    shape: tuple[int, int],
) -> dict[str, Any]:
    seconds = float(np.median(trials))
    bytes_per_second = matrices[case.weight_format][0].nbytes / seconds
    return {
        "isa": case.isa,
        "format": case.weight_format,
        "activations": case.activations if WEIGHT_FORMATS[case.weight_format].activations else "float32",
        "rows": case.rows,
        "seconds": seconds,
        "bytes_per_second": bytes_per_second,
        "share_of_read": bytes_per_second / bandwidth,
        "multiply_adds_per_second": case.rows * shape[0] * shape[1] / seconds,
        "trials_seconds": trials,
    }


def measure_attention(isas: Sequence[str], repetitions: int, told: Callable[[str], object]) -> list[dict[str, Any]]:
    """Time attention over the caches of a model's layers in turns, beside reading the same bytes as one stretch."""
    capacity = max(CACHED) + max(ATTENTION_ROWS)
    caches = np.full((LAYERS, 2, 1, KV_HEADS, capacity, HEAD_SIZE), 0.1, np.float16)
    points = [(i, m, c) for i in available(isas) if i != "scalar" for m in ATTENTION_ROWS for c in CACHED]
    trials: dict[tuple[str, int, int], list[float]] = {point: [] for point in points}
    reads: dict[int, list[float]] = {cached: [] for cached in CACHED}
    for repetition in range(repetitions):
        told(f"attention, repetition {repetition + 1} of {repetitions}")
        for cached in CACHED:
            part = np.ascontiguousarray(caches[:, :, 0, :, :cached]).view(np.uint8).reshape(-1)
            reads[cached].append(float(np.median(time_read(part, 3))) / LAYERS)
        for isa, rows, cached in points:
            seconds = time_attention(caches, HEADS, rows, cached, isa=isa, repetitions=2 * LAYERS)
            assert seconds is not None
            trials[isa, rows, cached].append(float(np.median(seconds)))
    return [
        {
            "isa": isa,
            "rows": rows,
            "cached": cached,
            "seconds": float(np.median(trials[isa, rows, cached])),
            "read_seconds": float(np.median(reads[cached])),
            "over_read": float(np.median(trials[isa, rows, cached]) / np.median(reads[cached])),
            "trials_seconds": trials[isa, rows, cached],
        }
        for isa, rows, cached in points
    ]
