"""Second moments of a layer's inputs, and their triangular factor, computed in the same memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
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
    above the diagonal have no meaning. `drift` float32[k, k] is the sum of (x - y)^T y / |y|^2 over exact inputs x and
    rounded inputs y, None if they are the same. `share` of it is made up for.
    """

    lower: NDArray[np.float32]
    order: NDArray[np.int64]
    drift: NDArray[np.float32] | None = None
    share: float = 1.0

    def shift(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Move rows float32[n, k] of a matrix to make up for a share of the drift of its inputs."""
        if self.drift is None or not self.share:
            return values
        moved = torch.from_numpy(np.ascontiguousarray((values @ self.drift)[:, self.order].T))
        lower = torch.from_numpy(self.lower)
        moved = torch.linalg.solve_triangular(lower, moved, upper=False)
        moved = torch.linalg.solve_triangular(lower.T, moved, upper=True)
        result = values.copy()
        result[:, self.order] += np.float32(self.share) * moved.numpy().T
        return result


class Moments:
    """The sum of x^T x over the rows x of a layer's inputs, each scaled to length one, float32[k, k].

    A token's error counts by its share of the token's inputs. Without that, the first token of each window, whose
    activations are 500 times as large as others in some models (Sun et al. 2024, https://arxiv.org/abs/2402.17762),
    would make up nearly the whole sum: a matrix would move far to make up for small drift of one token in a thousand.

    `drift` float32[k, k], zeros, takes the drift between exact and rounded inputs, if exact ones are added; `share` of
    it is made up for. It may be a mapped file: it is read in order, and as large as the sum.
    """

    def __init__(self, k: int, share: float = 1.0, drift: NDArray[np.float32] | None = None) -> None:
        self._share = share
        self._sum = torch.zeros(k, k)
        self._drift = None if drift is None else torch.from_numpy(drift)

    def add(self, inputs: torch.Tensor, exact: torch.Tensor | None = None) -> None:
        """Add inputs float32[..., k]; `exact` are the same inputs of a model without rounding."""
        rows = inputs.reshape(-1, self._sum.shape[0])
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        lengths.masked_fill_(lengths == 0, 1).masked_fill_(lengths.isinf(), torch.nan)
        units = rows / lengths
        self._sum.addmm_(units.T, units)
        if exact is not None:
            assert self._drift is not None, "drift has a place"
            self._drift.addmm_((exact.reshape(rows.shape) - rows).div_(lengths).T, units)

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
        return Factor(matrix, order, None if self._drift is None else self._drift.numpy(), self._share)


def factor_of(moments: Moments | None) -> tuple[Factor | None, str | None]:
    """The factor, or why it could not be computed."""
    if moments is None:
        return None, "its inputs were not seen"
    try:
        return moments.factor(), None
    except UnfactoredError as error:
        return None, str(error)


class Reads:
    """The tensors that a forward pass has read, to find matrices that read the same one."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, tuple[int, ...]], tuple[str, torch.Tensor]] = {}

    def first_of(self, name: str, values: torch.Tensor) -> str:
        """The first matrix that read these values: `name` itself if no other did before."""
        place = (values.data_ptr(), tuple(values.shape))
        first, _ = self._seen.setdefault(place, (name, values))  # held, so that no other tensor gets this address
        return first


@dataclass(slots=True)
class SharedMoments:
    """Moments of the inputs of several matrices; matrices that read the same tensor share their moments."""

    first: dict[str, str] = field(default_factory=dict)  # by matrix: the matrix whose moments it shares
    sums: dict[str, Moments] = field(default_factory=dict)
    _reads: Reads = field(default_factory=Reads)

    def begin_window(self) -> None:
        """Call before each forward pass, whose tensors may have the addresses of earlier ones."""
        self._reads = Reads()

    def add(self, name: str, inputs: torch.Tensor) -> None:
        """Add inputs [..., k] of a matrix."""
        first = self.first[name] = self._reads.first_of(name, inputs)
        if first == name:
            if name not in self.sums:
                self.sums[name] = Moments(inputs.shape[-1])
            self.sums[name].add(inputs)

    def groups(self) -> dict[str, list[str]]:
        """The groups of matrices that share moments, by their first matrix."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, first in self.first.items():
            found[first].append(name)
        return found


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
