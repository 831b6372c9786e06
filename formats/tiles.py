"""Matrices in MX and in the order that the matmul kernel reads them (docs/formats.md).

MX: 32 values along the reduction dimension share one E8M0 scale (OCP Microscaling Formats v1.0, section 6.3). Tiles:
16 output rows by 32 columns.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxspec.formats import native
from mxspec.formats.arrays import as_matrix, check_array, check_matrix, check_threads, choose
from mxspec.formats.weight_format import BLOCK, FP16_TILES, TILE_ROWS, format_of_element, packed_shape, weight_format

NAN_SCALE = 255
"""Scale byte of a block that held NaN or infinity."""


def blocks(k: int) -> int:
    """MX blocks in a row of k values; the last may be short."""
    return -(-k // BLOCK)


def quantize(
    values: NDArray[np.float32], element: str = "e3m2", rounding: str = "even", *, threads: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Round float32[n, k] to MX: codes uint8[n, k] (in the low bits) and scales uint8[n, ceil(k / 32)].

    The scale exponent is floor(log2(largest magnitude)) - emax from the float's bits; magnitudes beyond the largest
    code saturate. rounding: "even" (OCP MX, ONNX) or "away" (ties away from zero, microxcaling's "nearest").
    A block with NaN or infinity gets scale 255 and codes 0; an all-zero block scale 0. A negative value that rounds
    to zero gives the code of -0 (INT8, two's complement, has none), an input of -0.0 code 0. Raises TypeError or
    ValueError for a bad array or name.
    """
    element_number = native.element_number(element)
    rounding_number = choose("rounding", rounding, native.ROUNDINGS)
    check_matrix(values, "values", np.float32)
    matrix = as_matrix(values, "float32", False)
    codes = np.empty(values.shape, np.uint8)
    scales = np.empty((values.shape[0], blocks(values.shape[1])), np.uint8)
    native.call(
        "quantize",
        ctypes.byref(matrix),
        element_number,
        rounding_number,
        check_threads(threads),
        codes.ctypes.data,
        scales.ctypes.data,
    )
    return codes, scales


def dequantize(codes: NDArray[np.uint8], scales: NDArray[np.uint8], element: str = "e3m2") -> NDArray[np.float32]:
    """float32[n, k] = element value * 2^(scale - 127), exact; scale 255 gives NaN. Raises TypeError or ValueError."""
    element_number = native.element_number(element)
    n, k = check_matrix(codes, "codes", np.uint8)
    check_array(scales, "scales", np.uint8, (n, blocks(k)))
    values = np.empty((n, k), np.float32)
    native.call("dequantize", codes.ctypes.data, scales.ctypes.data, n, k, element_number, values.ctypes.data)
    return values


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
        return PackStatistics(*map(sum, zip(astuple(self), astuple(other), strict=True)))


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
    rounding: str = "even",
    dtype: str | None = None,
    rows: tuple[int, int] | None = None,
    out: NDArray[np.uint8] | None = None,
    threads: int | None = None,
) -> PackedMatrix:
    """Round a matrix to a format and pack it in one pass, without a float32 copy: the bytes of pack(*quantize(values)).

    values: [n, k], or [k, n] with transpose; float32, float16, or uint16 bit patterns with dtype="bfloat16"; the last
    axis contiguous. rounding: of MX, as in quantize; fp16 is rounded to nearest even. rows: the output rows (begin,
    end) to pack, multiples of 16 (end may be n). out: where to write, uint8[n_tiles, row_tile_bytes] of those rows.
    threads: all cores by default. Raises TypeError or ValueError.
    """
    element = weight_format(format_name).element
    choices: tuple[int, ...] = ()
    if element is not None:
        choices = native.element_number(element), choose("rounding", rounding, native.ROUNDINGS)
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
    function = "pack_fp16" if element is None else "quantize_pack"
    native.call(function, *arguments, out.ctypes.data, out.nbytes, ctypes.byref(counts))
    return PackedMatrix(out, PackStatistics(*(getattr(counts, name) for name, _ in counts._fields_)))
