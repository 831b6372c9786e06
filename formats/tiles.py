"""Weights in the order that the matmul kernel reads them: tiles of 16 output rows by 32 columns (docs/formats.md)."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxspec.formats import native
from mxspec.formats.arrays import as_matrix, check_array, check_matrix, check_threads, choose
from mxspec.formats.mx import blocks, dequantize
from mxspec.formats.weight_format import FP16_TILES, TILE_ROWS, format_of_element, packed_shape, weight_format


@dataclass(frozen=True, slots=True)
class PackStatistics:
    """What packing did to the values. Parts of a matrix that was packed in row ranges add up."""

    squared_error: float = 0.0
    """Sum of (value - packed value)^2 over the finite values (MX: over the blocks without NaN or infinity)."""
    squared_norm: float = 0.0
    nonfinite: int = 0
    """NaN and infinite values: a compiler refuses them."""
    overflow: int = 0
    """Finite values beyond 65504, the largest fp16 (fp16 tiles only): a compiler refuses them."""
    underflow: int = 0
    """Nonzero values packed as zero."""

    @property
    def relative_error(self) -> float:
        """Root mean square of the error over that of the values; 0 for an all-zero matrix."""
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm else 0.0

    def __add__(self, other: Self) -> PackStatistics:
        return PackStatistics(
            self.squared_error + other.squared_error,
            self.squared_norm + other.squared_norm,
            self.nonfinite + other.nonfinite,
            self.overflow + other.overflow,
            self.underflow + other.underflow,
        )


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """The packed rows, uint8[n_tiles, row_tile_bytes], and what packing did to them."""

    data: NDArray[np.uint8]
    statistics: PackStatistics

    @property
    def relative_error(self) -> float:
        """Root mean square of the error over that of the values."""
        return self.statistics.relative_error


def pack(codes: NDArray[np.uint8], scales: NDArray[np.uint8], element: str = "e3m2") -> NDArray[np.uint8]:
    """Codes uint8[n, k] and scales uint8[n, ceil(k / 32)] to uint8[n_tiles, row_tile_bytes].

    Raises TypeError or ValueError.
    """
    name = format_of_element(element).name
    n, k = check_matrix(codes, "codes", np.uint8)
    check_array(scales, "scales", np.uint8, (n, blocks(k)))
    packed = np.empty(packed_shape(name, n, k), np.uint8)
    number = native.element_number(element)
    native.call("pack", codes.ctypes.data, scales.ctypes.data, n, k, number, packed.ctypes.data)
    return packed


def unpack(
    packed: NDArray[np.uint8], n: int, k: int, element: str = "e3m2"
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The inverse of pack: codes uint8[n, k] and scales uint8[n, ceil(k / 32)]. Raises TypeError or ValueError."""
    check_array(packed, "packed", np.uint8, packed_shape(format_of_element(element).name, n, k))
    codes, scales = np.empty((n, k), np.uint8), np.empty((n, blocks(k)), np.uint8)
    number = native.element_number(element)
    native.call("unpack", packed.ctypes.data, n, k, number, codes.ctypes.data, scales.ctypes.data)
    return codes, scales


def unpack_fp16(packed: NDArray[np.uint8], n: int, k: int) -> NDArray[np.float16]:
    """float16[n, k] from fp16 tiles. Raises TypeError or ValueError."""
    check_array(packed, "packed", np.uint8, packed_shape(FP16_TILES, n, k))
    values = np.empty((n, k), np.float16)
    native.call("unpack_fp16", packed.ctypes.data, n, k, values.ctypes.data)
    return values


def unpack_values(packed: NDArray[np.uint8], format_name: str, n: int, k: int) -> NDArray[np.float32]:
    """The weights that a packed matrix of any format stands for, float32[n, k]. Raises TypeError or ValueError."""
    element = weight_format(format_name).element
    if element is None:
        return unpack_fp16(packed, n, k).astype(np.float32)
    return dequantize(*unpack(packed, n, k, element), element)


def pack_values(
    values: NDArray[np.generic],
    format_name: str,
    transpose: bool = False,
    *,
    dtype: str | None = None,
    rows: tuple[int, int] | None = None,
    out: NDArray[np.uint8] | None = None,
    threads: int | None = None,
) -> PackedMatrix:
    """Round a matrix to the format of this name, to nearest, and pack it; arguments as in quantize_pack."""
    element = weight_format(format_name).element
    if element is None:
        return pack_fp16(values, transpose, dtype=dtype, rows=rows, out=out, threads=threads)
    return quantize_pack(values, element, "even", transpose, dtype=dtype, rows=rows, out=out, threads=threads)


def quantize_pack(
    values: NDArray[np.generic],
    element: str = "e3m2",
    rounding: str = "even",
    transpose: bool = False,
    *,
    dtype: str | None = None,
    rows: tuple[int, int] | None = None,
    out: NDArray[np.uint8] | None = None,
    threads: int | None = None,
) -> PackedMatrix:
    """Quantise and pack a matrix in one pass, without a float32 copy of it: the same bytes as pack(*quantize(values)).

    values: [n, k], or [k, n] with transpose; float32, float16, or uint16 bit patterns with dtype="bfloat16"; the last
    axis contiguous. rows: the output rows (begin, end) to pack, multiples of 16 (end may be n). out: where to write,
    uint8[n_tiles, row_tile_bytes] of those rows. threads: all cores by default. Raises TypeError or ValueError.
    """
    choices = native.element_number(element), choose("rounding", rounding, native.ROUNDINGS)
    name = format_of_element(element).name
    return _pack_rows("quantize_pack", name, choices, values, transpose, dtype, rows, out, threads)


def pack_fp16(
    values: NDArray[np.generic],
    transpose: bool = False,
    *,
    dtype: str | None = None,
    rows: tuple[int, int] | None = None,
    out: NDArray[np.uint8] | None = None,
    threads: int | None = None,
) -> PackedMatrix:
    """Round to fp16 (nearest even) and pack into fp16 tiles; arguments as in quantize_pack."""
    return _pack_rows("pack_fp16", FP16_TILES, (), values, transpose, dtype, rows, out, threads)


def _pack_rows(
    function: str,
    format_name: str,
    choices: tuple[int, ...],
    values: NDArray[np.generic],
    transpose: bool,
    dtype: str | None,
    rows: tuple[int, int] | None,
    out: NDArray[np.uint8] | None,
    threads: int | None,
) -> PackedMatrix:
    matrix = as_matrix(values, dtype, transpose)
    begin, end = (0, matrix.n) if rows is None else rows
    if not 0 <= begin < end <= matrix.n or begin % TILE_ROWS or (end % TILE_ROWS and end != matrix.n):
        raise ValueError(
            f"rows: got {rows} of {matrix.n}, expected multiples of {TILE_ROWS} (the end may be the last row)"
        )
    shape = packed_shape(format_name, end - begin, matrix.k)
    if out is None:
        out = np.empty(shape, np.uint8)
    check_array(out, "out", np.uint8, shape)
    if not out.flags.writeable:
        raise ValueError("out: the array is read-only")
    counts = native.PackingStatistics()
    arguments = (ctypes.byref(matrix), begin, end, *choices, check_threads(threads))
    native.call(function, *arguments, out.ctypes.data, out.nbytes, ctypes.byref(counts))
    statistics = PackStatistics(
        counts.squared_error, counts.squared_norm, counts.nonfinite, counts.overflow, counts.underflow
    )
    return PackedMatrix(out, statistics)
