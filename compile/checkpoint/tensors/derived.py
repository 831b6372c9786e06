"""Tensors that are computed from others as they are read: merged with an adapter, or some rows of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, Tensor, as_float32

Ids = NDArray[np.int64]


class DerivedTensor:
    """What a Tensor takes from its `base`, unless it says otherwise; it is read only in the ways that it says."""

    __slots__ = ()
    base: Tensor

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def shard(self) -> str:
        return self.base.shard

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    def bytes(self) -> int:
        return self.base.bytes

    @property
    def dtype(self) -> str:
        return self.base.dtype

    @property
    def identity(self) -> tuple[int, ...]:
        return self.base.identity

    @property
    def origins(self) -> frozenset[str]:
        return self.base.origins

    def read_rows(self, begin: int, end: int) -> NDArray[Any]:
        return self._unread(begin, end)

    def read_columns(self, begin: int, end: int) -> NDArray[Any]:
        return self._unread(begin, end)

    def read_bytes(self, begin: int, end: int) -> NDArray[np.uint8]:
        return self._unread(begin, end)

    def _unread(self, begin: int, end: int) -> NoReturn:
        raise AssertionError(f"{begin} to {end} of {type(self).__name__} {self.name} is not read in this way")


@dataclass(frozen=True, slots=True)
class LowRank:
    """scale * B A with a [r, k] and b [n, r], to be added to a weight [n, k] (LoRA; Hu et al., 2021)."""

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
        return "float32"

    @property
    def identity(self) -> tuple[int, ...]:
        files = (self.base, self.update.a, self.update.b)
        return *(number for file in files for number in file.identity), *self.update.scale.as_integer_ratio()

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        if self.transposed:
            added = _read(self.update.a, 0, None)[:, begin:end].T @ _read(self.update.b, 0, None).T
        else:
            added = _read(self.update.b, begin, end) @ _read(self.update.a, 0, None)
        return self._add(self.base.read_rows(begin, end), added)

    def read_columns(self, begin: int, end: int) -> NDArray[np.float32]:
        assert self.transposed
        added = _read(self.update.a, 0, None).T @ _read(self.update.b, begin, end).T
        return self._add(self.base.read_columns(begin, end), added)

    def _add(self, values: NDArray[Any], added: NDArray[np.float32]) -> NDArray[np.float32]:
        return as_float32(values, self.base.dtype) + np.float32(self.update.scale) * added


def _read(tensor: CheckpointTensor, begin: int, end: int | None) -> NDArray[np.float32]:
    return as_float32(tensor.read_rows(begin, tensor.shape[0] if end is None else end), tensor.dtype)


@dataclass(frozen=True, slots=True)
class SelectedRows(DerivedTensor):
    """Rows `rows` of a tensor, in that order; of a matrix that is MX in the checkpoint, the exact values of its codes.

    An LM head that proposes few tokens keeps theirs. It is never stored transposed.
    """

    base: Tensor
    rows: Ids

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.base.shape[1:]

    @property
    def bytes(self) -> int:
        return self.base.bytes // self.base.shape[0] * len(self.rows)

    @property
    def identity(self) -> tuple[int, ...]:
        return *self.base.identity, len(self.rows), zlib.crc32(self.rows.tobytes())

    def read_rows(self, begin: int, end: int) -> NDArray[Any]:
        """Selected rows [begin, end); neighbours in the checkpoint are read at once."""
        wanted = self.rows[begin:end]
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        return np.concatenate([self.base.read_rows(int(run[0]), int(run[-1]) + 1) for run in runs])
