"""Arrays at the border to native code and files: checks of dtype, shape and layout, and codes as a stream of bits."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import did_you_mean
from mxspec.formats.native import TYPES, Matrix


def check_array(array: NDArray[np.generic], name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError unless the array is C-contiguous dtype[shape]."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name}: got {got}, expected an array of {np.dtype(dtype)}")
    if array.shape != shape:
        raise ValueError(f"{name}: got shape {list(array.shape)}, expected {list(shape)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: the array is not C-contiguous: copy it with numpy.ascontiguousarray")


def check_matrix(array: NDArray[np.generic], name: str, dtype: type[np.generic]) -> tuple[int, int]:
    """The shape of a C-contiguous matrix of dtype that is not empty; raises like check_array."""
    shape = np.shape(array)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{name}: got shape {list(shape)}, expected a matrix [n, k] of at least one row and column")
    check_array(array, name, dtype, shape)
    return int(shape[0]), int(shape[1])


def choose(name: str, value: str, known: Mapping[str, int]) -> int:
    """The number of a named choice; ValueError names the choices."""
    if value not in known:
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}{did_you_mean(str(value), known)}")
    return known[value]


def as_matrix(values: NDArray[np.generic], dtype: str | None, transpose: bool) -> Matrix:
    """Describe float rows to native code without copying: the last axis must be contiguous, rows may lie apart.

    dtype: "float32", "float16" or "bfloat16" (uint16 bit patterns, which must be asked for by name); None takes the
    array's own. transpose: the array is [k, n]. Raises TypeError or ValueError.
    """
    if not isinstance(values, np.ndarray):
        raise TypeError(f"values: got {type(values).__name__}, expected a numpy array")
    wanted = values.dtype.name if dtype is None else dtype
    type_number = choose("dtype", wanted, TYPES) if dtype is not None else TYPES.get(wanted)
    if type_number is None or values.dtype != (np.uint16 if wanted == "bfloat16" else np.dtype(wanted)):
        asked = f" for dtype={dtype!r}" if dtype is not None else ""
        expected = "float32, float16, or uint16 with dtype='bfloat16'"
        raise TypeError(f"values: got {values.dtype}{asked}, expected {expected}")
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"values: got shape {list(values.shape)}, expected a matrix of at least one row and column")
    lines, length = values.shape
    line_bytes, step = values.strides
    if (length > 1 and step != values.itemsize) or (lines > 1 and line_bytes < length * values.itemsize):
        got = f"values: got strides {list(values.strides)} for {list(values.shape)} of {values.dtype}"
        raise ValueError(f"{got}, expected contiguous rows in rising order: copy it with numpy.ascontiguousarray")
    if not values.flags.aligned or line_bytes % values.itemsize:
        raise ValueError("values: the array is not aligned to its entries: copy it")
    stride = line_bytes // values.itemsize if lines > 1 else length
    n, k = (length, lines) if transpose else (lines, length)
    return Matrix(values.ctypes.data, n, k, stride, type_number, int(transpose))


def all_threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """The number of threads to use; None takes all cores."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads: got {threads}, expected at least 1")
    return all_threads() if threads is None else threads


def as_bits(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes from the low bits of bytes into a stream of bits: lowest bits first, zeros after the last code."""
    if bits == 8:
        return codes
    in_group = 8 // np.gcd(bits, 8)  # codes that fill whole bytes: 2 of 4 bits a byte, 4 of 6 bits three
    padded = np.zeros(-(-codes.size // in_group) * in_group, np.uint32)
    padded[: codes.size] = codes.reshape(-1)
    groups = padded.reshape(-1, in_group)
    words = np.bitwise_or.reduce(groups << (bits * np.arange(in_group, dtype=np.uint32)), axis=1)
    stream = words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : bits * in_group // 8]
    return np.ascontiguousarray(stream).reshape(-1)[: -(-codes.size * bits // 8)]
