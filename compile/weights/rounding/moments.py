"""Second moments of a layer's inputs, and their triangular factor, computed in the same memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

DAMPING = 0.01
"""Of the mean of the diagonal, added to it (GPTQ, section 3.3, step 3)."""
_PANEL = 512  # columns factored at a time
_CHUNK = 1024  # rows updated at a time


class UnfactoredError(ArithmeticError):
    """Moments that have no triangular factor: not finite, all zero, or not positive definite."""


@dataclass(frozen=True, slots=True)
class Factor:
    """`lower` float32[k, k] with lower lower^T = the damped moments, rows and columns in `order` int64[k].

    Columns with the largest moments come last: they are rounded first, while all others can still compensate. Entries
    above the diagonal have no meaning.
    """

    lower: NDArray[np.float32]
    order: NDArray[np.int64]


class Moments:
    """The sum of x^T x over the rows x of a layer's inputs, float32[k, k]."""

    def __init__(self, k: int) -> None:
        self._sum = torch.zeros(k, k)

    def add(self, inputs: torch.Tensor) -> None:
        """Inputs float32[..., k]."""
        rows = inputs.reshape(-1, self._sum.shape[0])
        self._sum.addmm_(rows.T, rows)

    def factor(self, damping: float = DAMPING) -> Factor:
        """Damp, order and factor; uses up the moments' memory. Raises UnfactoredError."""
        matrix: NDArray[np.float32] = self._sum.numpy()
        diagonal = matrix.diagonal().astype(np.float64)
        mean = diagonal.mean()
        if not np.isfinite(mean) or mean <= 0:
            raise UnfactoredError("the inputs are not finite" if not np.isfinite(mean) else "the inputs are all zero")
        order = np.argsort(diagonal, kind="stable")
        _rearrange(matrix, order)
        matrix[np.diag_indices_from(matrix)] += np.float32(damping * mean)
        try:
            _factor_in_place(matrix)
        except np.linalg.LinAlgError:
            raise UnfactoredError("the moments are not positive definite") from None
        if not np.isfinite(matrix.diagonal()).all():
            raise UnfactoredError("the moments are not finite")
        return Factor(matrix, order)


def _rearrange(matrix: NDArray[np.float32], order: NDArray[np.int64]) -> None:
    """matrix[order][:, order], in place: columns row by row, then the rows along the cycles of the permutation."""
    for row in matrix:
        row[:] = row[order]
    left = set(range(len(order)))
    while left:
        start = place = left.pop()
        first = matrix[start].copy()
        while (source := int(order[place])) != start:
            matrix[place] = matrix[source]
            left.discard(source)
            place = source
        matrix[place] = first


def _factor_in_place(matrix: NDArray[np.float32]) -> None:
    """Cholesky by panels; the lower triangle becomes the factor. Raises LinAlgError."""
    size = len(matrix)
    for begin, end in pairwise([*range(0, size, _PANEL), size]):
        corner = np.linalg.cholesky(matrix[begin:end, begin:end].astype(np.float64))
        matrix[begin:end, begin:end] = corner
        inverse = np.linalg.inv(corner).astype(np.float32).T
        for first in range(end, size, _CHUNK):
            rows = slice(first, first + _CHUNK)
            matrix[rows, begin:end] = matrix[rows, begin:end] @ inverse
        for first in range(end, size, _CHUNK):
            last = min(first + _CHUNK, size)
            matrix[first:last, end:last] -= matrix[first:last, begin:end] @ matrix[end:last, begin:end].T
