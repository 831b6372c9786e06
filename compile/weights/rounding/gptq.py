"""Error-compensated rounding: GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323).

It rounds a row w to q on the grid so that (w - q) H (w - q)^T is small, where H has the second moments of the inputs.
Columns are rounded one after the other, each moved first to compensate earlier errors. With H = L L^T, L lower
triangular, (w - q) H (w - q)^T is the squared length of (w - q) L, whose entry i depends only on the errors e_j = w_j -
q_j of j >= i. So the columns are taken from the last to the first, and column i is rounded at

    w_i + sum over j > i of e_j L_ji / L_ii

which is GPTQ without its inverse (Chen et al. 2025, https://arxiv.org/abs/2507.18553: it is Babai's nearest plane).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.weights.rounding.grid import Grid
from mxspec.compile.weights.rounding.moments import Factor
from mxspec.compile.weights.rounding.scale import best_exponents, powers
from mxspec.formats.weight_format import BLOCK

COLUMNS = 128  # rounded between two products with the errors so far


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
