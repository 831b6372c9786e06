"""The exponents that blocks of 32 share: by the rule of the specification, or the best of three by squared error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.tensor import as_float32
from mxspec.compile.weights.rounding.grid import Grid
from mxspec.formats.tiles import PackedMatrix, PackStatistics, pack_values
from mxspec.formats.weight_format import BLOCK

NEIGHBOURS = (0, 1, -1)  # tried around the rule's exponent; of equal errors the first is taken
_SMALLEST = -100  # blocks of smaller scale become zero: 1 / scale must be a float32


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
