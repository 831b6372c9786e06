"""A weight that a LoRA adapter changes: W + scale * B A (Hu et al., 2021), computed piece by piece as it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.derived_tensor import DerivedTensor
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, as_float32


@dataclass(frozen=True, slots=True)
class LowRank:
    """scale * B A with a [r, k] and b [n, r], to be added to a weight [n, k]."""

    a: CheckpointTensor
    b: CheckpointTensor
    scale: float


@dataclass(frozen=True, slots=True)
class MergedTensor(DerivedTensor):
    """A checkpoint's weight plus an adapter's change, float32; `transposed` says that the weight is stored [k, n]."""

    base: CheckpointTensor
    update: LowRank
    transposed: bool

    @property
    def dtype(self) -> str:
        """What is read."""
        return "float32"

    @property
    def identity(self) -> tuple[int, ...]:
        """Changes when one of the files or the scale does."""
        files = (self.base, self.update.a, self.update.b)
        return *(number for file in files for number in file.identity), *self.update.scale.as_integer_ratio()

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Rows [begin, end) of the stored matrix."""
        if self.transposed:
            added = _read(self.update.a, 0, None)[:, begin:end].T @ _read(self.update.b, 0, None).T
        else:
            added = _read(self.update.b, begin, end) @ _read(self.update.a, 0, None)
        return self._add(self.base.read_rows(begin, end), added)

    def read_columns(self, begin: int, end: int) -> NDArray[np.float32]:
        """Columns [begin, end), all rows, for weights stored [k, n]."""
        assert self.transposed
        added = _read(self.update.a, 0, None).T @ _read(self.update.b, begin, end).T
        return self._add(self.base.read_columns(begin, end), added)

    def _add(self, values: NDArray[Any], added: NDArray[np.float32]) -> NDArray[np.float32]:
        return as_float32(values, self.base.dtype) + np.float32(self.update.scale) * added


def _read(tensor: CheckpointTensor, begin: int, end: int | None) -> NDArray[np.float32]:
    return as_float32(tensor.read_rows(begin, tensor.shape[0] if end is None else end), tensor.dtype)
