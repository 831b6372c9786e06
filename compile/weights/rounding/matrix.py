"""Round one matrix of the checkpoint, some rows at a time, into tiles.

With moments of its inputs, errors are compensated: GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323) rounds
a row w to q on the grid so that (w - q) H (w - q)^T is small, where H has the second moments of the inputs.
Columns are rounded one after the other, each moved first to compensate earlier errors. With H = L L^T, L lower
triangular, (w - q) H (w - q)^T is the squared length of (w - q) L, whose entry i depends only on the errors e_j = w_j -
q_j of j >= i. So the columns are taken from the last to the first, and column i is rounded at

    w_i + sum over j > i of e_j L_ji / L_ii

which is GPTQ without its inverse (Chen et al. 2025, https://arxiv.org/abs/2507.18553: it is Babai's nearest plane).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from mxspec.compile.checkpoint.tensors.tensor import Tensor, as_float32
from mxspec.compile.weights.rounding.grid import Grid, best_exponents, compare, powers
from mxspec.compile.weights.rounding.moments import Factor
from mxspec.formats.errors import CheckpointError
from mxspec.formats.tiles import PackStatistics, pack_values, unpack_values
from mxspec.formats.weight_format import BLOCK, TILE_ROWS

PIECE_BYTES = 16 << 20  # of float32 values rounded at a time; their copies take eight times as much
COLUMNS = 128  # rounded between two products with the errors so far


@dataclass(frozen=True, slots=True)
class MatrixSource:
    """A matrix [n, k] of the checkpoint, stored [k, n] if it is transposed, and its MX format."""

    tensor: Tensor
    transpose: bool
    format_name: str

    @classmethod
    def of(cls, tensor: Tensor, module: nn.Module, format_name: str) -> Self:
        """The matrix of a linear layer, or of a Conv1D, which is transposed."""
        return cls(tensor, not isinstance(module, nn.Linear), format_name)

    @property
    def shape(self) -> tuple[int, int]:
        """n and k."""
        rows, columns = self.tensor.shape
        return (columns, rows) if self.transpose else (rows, columns)

    def read(self, begin: int, end: int) -> NDArray[np.float32]:
        """Rows float32[end - begin, k]. Raises CheckpointError for values that are not finite."""
        read = self.tensor.read_columns if self.transpose else self.tensor.read_rows
        values = as_float32(read(begin, end), self.tensor.dtype)
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"tensor {self.tensor.name!r} of {self.tensor.shard} holds NaN or infinity; the checkpoint is damaged"
            )
        return np.ascontiguousarray(values.T) if self.transpose else values


def round_matrix(
    source: MatrixSource, factor: Factor | None, tiles: NDArray[np.uint8], weight: NDArray[np.float32] | None
) -> PackStatistics:
    """Write the tiles uint8[n_tiles, row_tile_bytes] of a matrix: errors compensated, or to nearest without a factor.

    The tiles' values are also written to `weight`, if given, in the checkpoint's own orientation.
    """
    statistics = PackStatistics()
    n, k = source.shape
    rows = max(1, PIECE_BYTES // (4 * k * TILE_ROWS)) * TILE_ROWS
    for begin in range(0, n, rows):
        end = min(begin + rows, n)
        values = source.read(begin, end)
        out = tiles[begin // TILE_ROWS : -(-end // TILE_ROWS)]
        taken, stored = _round_rows(values, source.format_name, factor, out)
        statistics += taken
        if weight is not None and source.transpose:
            weight[:, begin:end] = stored.T
        elif weight is not None:
            weight[begin:end] = stored
    return statistics


def _round_rows(
    values: NDArray[np.float32], format_name: str, factor: Factor | None, out: NDArray[np.uint8]
) -> tuple[PackStatistics, NDArray[np.float32]]:
    """Pack rows; return the statistics of packing, and the tiles' values.

    Values that are already on a block's grid are packed unchanged: the rule's exponent is never above the one of their
    rounding, and its grid holds them all.
    """
    if factor is None:
        packed = pack_values(values, format_name, out=out)
        return packed.statistics, unpack_values(packed.data, format_name, *values.shape)
    grid = Grid.of(format_name)
    rounded = compensate(values, grid, factor)
    packed = pack_values(rounded, format_name, out=out)
    return compare(values, rounded), rounded


def compensate(values: NDArray[np.float32], grid: Grid, factor: Factor) -> NDArray[np.float32]:
    """Round float32[n, k] to the grid, with compensated errors.

    First the matrix moves to make up for the drift of its inputs. Then each block takes the best of three exponents:
    the rule's exponent clips a largest value that lies above the format's largest number.
    """
    moved = factor.shift(values)
    return compensate_under(best_exponents(moved, grid), moved, grid, factor)


def compensate_under(
    exponents: NDArray[np.int32], values: NDArray[np.float32], grid: Grid, factor: Factor
) -> NDArray[np.float32]:
    """Round float32[n, k] to the grid under exponents int32[n, blocks], with compensated errors.

    Rows do not depend on each other. It takes three times the memory of `values`.
    """
    lower, order = factor.lower, factor.order
    columns = np.ascontiguousarray(values.T[order])  # [k, n], in the factor's order
    scales, inverses = (np.ascontiguousarray(power.T) for power in powers(exponents))
    errors = np.empty_like(columns)
    for end in range(len(order), 0, -COLUMNS):
        begin = max(0, end - COLUMNS)
        moved = lower[end:, begin:end].T @ errors[end:]
        for i in range(end - 1, begin - 1, -1):
            move = moved[i - begin]
            move += lower[i + 1 : end, i] @ errors[i + 1 : end]
            move /= lower[i, i]
            move += columns[i]
            block = order[i] // BLOCK
            rounded = grid.round(move * inverses[block])
            rounded *= scales[block]
            np.subtract(columns[i], rounded, out=errors[i])
            columns[i] = rounded
    result = np.empty_like(values)
    result.T[order] = columns
    return result
