"""Times of the kernels and of the memory alone, without ONNX Runtime, to compare a whole model's times with."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.caches import CACHE_KINDS, CacheKind, cache_dtype, entry_size
from mxspec.formats.native import ISAS
from mxspec.formats.weight_format import ACTIVATIONS, TILE_ROWS, WEIGHT_FORMATS, Activations, packed_shape
from mxspec.runtime.ops import library_path

__all__ = ["GATES", "read_loops", "time_attention", "time_experts", "time_matmul", "time_read", "time_region"]

GATES = ("silu", "gelu_tanh", "clamped_swiglu")
"""The activations of PackedExperts, in the order of GateActivation (runtime/ops/kernels/gated.h)."""


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.mxspec_time_matmul.restype = ctypes.c_int
    library.mxspec_time_matmul.argtypes = (
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        *(size,) * 3,
        pointer,
        pointer,
        size,
        pointer,
        size,
        pointer,
    )
    library.mxspec_time_experts.restype = ctypes.c_int
    library.mxspec_time_experts.argtypes = (
        ctypes.c_char_p,
        ctypes.POINTER(size),
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_int,
        *(pointer,) * 5,
        size,
        pointer,
    )
    library.mxspec_time_attention.restype = ctypes.c_int
    library.mxspec_time_attention.argtypes = (ctypes.c_char_p, ctypes.c_int, *(size,) * 7, pointer, size, size, pointer)
    library.mxspec_time_read.restype = ctypes.c_uint64
    library.mxspec_time_read.argtypes = (size, pointer, size, size, pointer)
    library.mxspec_time_region.restype = None
    library.mxspec_time_region.argtypes = (ctypes.c_double, size, pointer)
    library.mxspec_read_loops.restype = ctypes.c_char_p
    return library


def time_matmul(
    weight_format: str,
    packed: NDArray[np.uint8],
    n: int,
    a: NDArray[np.float32],
    *,
    activations: Activations = "int16",
    isa: str = "",
    repetitions: int = 10,
) -> NDArray[np.float64] | None:
    """Seconds of each product of a float32[m, k] with packed uint8[matrices, n_tiles, row_tile_bytes], alternating.

    isa: one of ISAS, by default the best one. Returns None where this machine does not have it.
    """
    m, k = a.shape
    assert packed.shape[1:] == packed_shape(weight_format, n, k), f"{packed.shape}: not {weight_format} {n} x {k}"
    assert activations == "int16" or activations in WEIGHT_FORMATS[weight_format].activations
    assert a.flags.c_contiguous
    assert packed.flags.c_contiguous
    out, seconds = np.empty((m, n), np.float32), np.empty(repetitions)
    status = _library().mxspec_time_matmul(
        isa.encode(),
        WEIGHT_FORMATS[weight_format].native_id,
        ACTIVATIONS.index(activations),
        m,
        n,
        k,
        a.ctypes.data,
        packed.ctypes.data,
        len(packed),
        out.ctypes.data,
        repetitions,
        seconds.ctypes.data,
    )
    return _timed(status, isa, seconds)


def time_experts(
    kinds: tuple[tuple[str, Activations], tuple[str, Activations]],
    gate_up: NDArray[np.uint8],
    down: NDArray[np.uint8],
    x: NDArray[np.float32],
    chosen: NDArray[np.int64],
    *,
    experts: int,
    inner: int,
    gate: str = "silu",
    isa: str = "",
) -> NDArray[np.float64] | None:
    """Seconds of a call with x float32[rows, k] for each routing of chosen int64[calls, rows, top_k].

    kinds: the formats and activations of gate_up and down, packed as PackedExperts takes them. gate: one of GATES. isa:
    one of ISAS, by default the best one. Returns None where this machine does not have it.
    """
    (calls, rows, top_k), k = chosen.shape, x.shape[1]
    n = len(down) * TILE_ROWS // experts
    assert x.shape[0] == rows
    assert gate_up.shape == packed_shape(kinds[0][0], experts * 2 * inner, k)
    assert down.shape == packed_shape(kinds[1][0], experts * n, inner)
    assert chosen.size == 0 or (chosen.min() >= 0 and chosen.max() < experts)
    assert all(array.flags.c_contiguous for array in (gate_up, down, x, chosen))
    out, seconds = np.empty((rows, n), np.float32), np.empty(calls)
    sizes = (ctypes.c_size_t * 6)(rows, top_k, experts, k, inner, n)
    numbers = (WEIGHT_FORMATS[name].native_id for name, _ in kinds), (ACTIVATIONS.index(name) for _, name in kinds)
    status = _library().mxspec_time_experts(
        isa.encode(),
        sizes,
        (ctypes.c_int * 4)(*(number for kind in zip(*numbers, strict=True) for number in kind)),
        GATES.index(gate),
        *(array.ctypes.data for array in (x, chosen, gate_up, down, out)),
        calls,
        seconds.ctypes.data,
    )
    return _timed(status, isa, seconds)


def time_attention(
    caches: NDArray[Any],
    kind: CacheKind,
    head_size: int,
    heads: int,
    rows: int,
    cached: int,
    *,
    isa: str = "",
    repetitions: int = 10,
) -> NDArray[np.float64] | None:
    """Seconds of each call of `rows` tokens of each sequence after `cached` ones of its own, the layers alternating.

    caches: [layers, 2, sequences, kv_heads, capacity, entry], as formats.caches has them. isa: one of ISAS, by default
    the best one. Returns None where this machine does not have it.
    """
    layers, _, sequences, kv_heads, capacity, entry = caches.shape
    assert cached + rows <= capacity
    assert caches.flags.c_contiguous
    assert (caches.dtype, entry) == (cache_dtype(kind), entry_size(kind, head_size))
    seconds = np.empty(repetitions)
    sizes = (heads, kv_heads, head_size, sequences, rows, cached, capacity)
    status = _library().mxspec_time_attention(
        isa.encode(), CACHE_KINDS.index(kind), *sizes, caches.ctypes.data, layers, repetitions, seconds.ctypes.data
    )
    return _timed(status, isa, seconds)


def _timed(status: int, isa: str, seconds: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The seconds, checked by their status (timing.cpp); None for an instruction set that the machine lacks."""
    assert status != 1, f"{isa}: not one of {ISAS}"
    if status == 3:
        raise MemoryError("timing of an operator")
    return None if status else seconds


def time_region(pause: float, repetitions: int = 10) -> NDArray[np.float64]:
    """Seconds of each of `repetitions` empty jobs of all threads; the caller works alone for `pause` seconds before."""
    seconds = np.empty(repetitions)
    _library().mxspec_time_region(pause, repetitions, seconds.ctypes.data)
    return seconds


def read_loops() -> list[str]:
    """The names of the loops that only read, with loads as wide as this machine has them."""
    names: bytes = _library().mxspec_read_loops()
    return names.decode().split(";")


def time_read(data: NDArray[np.uint8], loop: str, repetitions: int = 1) -> tuple[NDArray[np.float64], int]:
    """Seconds of each reading of all bytes on the operators' threads by one of read_loops().

    And the sum of all that was read as 64-bit words (zeros after the last byte), modulo 2^64.
    """
    assert data.flags.c_contiguous
    seconds = np.empty(repetitions)
    number = read_loops().index(loop)
    total = _library().mxspec_time_read(number, data.ctypes.data, data.nbytes, repetitions, seconds.ctypes.data)
    return seconds, int(total)
