"""Rounding to the values of an MX element, under the exponents that blocks of 32 share.

The exponents are those of the specification's rule, or the best of three by squared error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.tensor import as_float32
from mxspec.formats.tiles import PackedMatrix, PackStatistics, dequantize, pack_values
from mxspec.formats.weight_format import BLOCK, weight_format

NEIGHBOURS = (0, 1, -1)  # tried around the rule's exponent; of equal errors the first is taken
_SMALLEST = -100  # blocks of smaller scale become zero: 1 / scale must be a float32
_UNIT_SCALE = 127  # the E8M0 byte of 2^0
_EXPONENT_BITS = np.int32(0x7F800000)
_MANTISSA_WIDTH = 23  # of a float32


@dataclass(frozen=True, slots=True)
class Grid:
    """A symmetric grid: spacing 2^(e - mantissa_bits) between 2^e and 2^(e+1), for e from `emin`, up to `largest`."""

    mantissa_bits: int
    emin: int
    largest: float

    @classmethod
    def of(cls, format_name: str) -> Grid:
        """The grid of an MX weight format, from its codec's values of all codes. Raises ValueError."""
        form = weight_format(format_name)
        if form.element is None:
            raise ValueError(f"format: got {format_name!r}, expected an MX format")
        codes = np.arange(1 << form.bits, dtype=np.uint8)[:, None]
        values = dequantize(codes, np.full((len(codes), 1), _UNIT_SCALE, np.uint8), form.element)
        smallest, *_, below, largest = np.unique(values[values > 0]).tolist()
        mantissa_bits = math.frexp(largest)[1] - math.frexp(largest - below)[1]
        return cls(mantissa_bits, math.frexp(smallest)[1] - 1 + mantissa_bits, largest)

    @property
    def emax(self) -> int:
        """Exponent of the largest value."""
        return math.frexp(self.largest)[1] - 1

    def round(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The nearest numbers of the grid, ties to even; larger magnitudes become the largest."""
        steps = values.view(np.int32) & _EXPONENT_BITS
        np.maximum(steps, np.int32((self.emin + _UNIT_SCALE) << _MANTISSA_WIDTH), out=steps)
        steps -= np.int32(self.mantissa_bits << _MANTISSA_WIDTH)
        step = steps.view(np.float32)
        rounded = values / step
        np.rint(rounded, out=rounded)
        rounded *= step
        return np.clip(rounded, -self.largest, self.largest, out=rounded)


def rule_exponents(values: NDArray[np.float32], grid: Grid) -> NDArray[np.int32]:
    """int32[n, blocks] exponents of float32[n, k]: floor(log2(largest magnitude)) - emax (OCP MX v1.0, 6.3)."""
    largest = np.abs(_blocks(values)).max(axis=2)
    exponents: NDArray[np.int32] = np.frexp(largest)[1].astype(np.int32) - 1 - grid.emax
    return np.where(largest > 0, exponents, _SMALLEST - 1).astype(np.int32)


def best_exponents(values: NDArray[np.float32], grid: Grid) -> NDArray[np.int32]:
    """int32[n, blocks] exponents: of the rule's and its neighbours the one of least squared error."""
    blocks, start = _blocks(values), rule_exponents(values, grid)
    best, least = start, np.full(start.shape, np.inf, np.float32)
    for step in NEIGHBOURS:
        exponents = start + np.int32(step)
        scale, inverse = powers(exponents)
        rounded = grid.round(blocks * inverse[:, :, None])
        rounded *= scale[:, :, None]
        rounded -= blocks
        error = np.einsum("nbi,nbi->nb", rounded, rounded)
        best, least = np.where(error < least, exponents, best), np.minimum(error, least)
    return best


def round_with(values: NDArray[np.float32], grid: Grid, exponents: NDArray[np.int32]) -> NDArray[np.float32]:
    """float32[n, k] to the nearest numbers that the grid has under these exponents, int32[n, blocks]."""
    scale, inverse = powers(exponents)
    rounded = grid.round(_blocks(values) * inverse[:, :, None])
    rounded *= scale[:, :, None]
    return np.ascontiguousarray(rounded.reshape(len(values), -1)[:, : values.shape[1]])


def pack_best(values: NDArray[np.generic], format_name: str, transpose: bool = False, *, dtype: str) -> PackedMatrix:
    """Round float32, float16 or bfloat16 values to an MX format with the best scales, and pack; as `pack_values`.

    Packing them to nearest keeps them as they are: the rule's exponent of values that lie on a block's grid is never
    above the one that they were rounded with, and its grid holds them all.
    """
    exact = as_float32(values, dtype)
    exact = np.ascontiguousarray(exact.T) if transpose else exact
    if nonfinite := int(exact.size - np.count_nonzero(np.isfinite(exact))):
        return PackedMatrix(np.empty((0, 0), np.uint8), PackStatistics(nonfinite=nonfinite))
    grid = Grid.of(format_name)
    rounded = round_with(exact, grid, best_exponents(exact, grid))
    return PackedMatrix(pack_values(rounded, format_name).data, compare(exact, rounded))


def compare(values: NDArray[np.float32], rounded: NDArray[np.float32]) -> PackStatistics:
    """What rounding did to values, as the packers count it."""
    error = (values - rounded).astype(np.float64)
    return PackStatistics(
        squared_error=float(np.vdot(error, error)),
        squared_norm=float(np.sum(np.square(values, dtype=np.float64))),
        underflow=int(np.count_nonzero((rounded == 0) & (values != 0))),
    )


def powers(exponents: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """2^exponent and 2^-exponent; both 0 for a block that becomes zero."""
    alive = exponents >= _SMALLEST
    scale = np.ldexp(alive.astype(np.float32), exponents)
    return scale, np.ldexp(alive.astype(np.float32), -exponents)


def _blocks(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[n, blocks, 32]; a last block that is short is filled with zeros."""
    n, k = values.shape
    padded = values if k % BLOCK == 0 else np.pad(values, ((0, 0), (0, -k % BLOCK)))
    return padded.reshape(n, -1, BLOCK)
