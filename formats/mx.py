"""MX: 32 values along the reduction dimension share one E8M0 scale (OCP Microscaling Formats v1.0, section 6.3)."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from mxspec.formats import native
from mxspec.formats.arrays import as_matrix, check_array, check_matrix, check_threads, choose
from mxspec.formats.weight_format import BLOCK

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
