"""Some rows of a checkpoint's tensor: those of a head that keeps few tokens, in the order in which it keeps them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.derived_tensor import DerivedTensor

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SelectedRows(DerivedTensor):
    """Rows `rows` of a tensor; of a matrix that is MX in the checkpoint, the exact values of its codes."""

    base: Any  # a Source of mx_tensor.py
    rows: Ids

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the selected rows."""
        return len(self.rows), *self.base.shape[1:]

    @property
    def bytes(self) -> int:
        """Size of the selected rows in the checkpoint."""
        return int(self.base.bytes) // int(self.base.shape[0]) * len(self.rows)

    @property
    def identity(self) -> tuple[int, ...]:
        """Changes when the file or the selection does."""
        return *self.base.identity, len(self.rows), zlib.crc32(self.rows.tobytes())

    def read_rows(self, begin: int, end: int) -> NDArray[Any]:
        """Selected rows [begin, end); neighbours in the checkpoint are read at once."""
        wanted = self.rows[begin:end]
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        return np.concatenate([self.base.read_rows(int(run[0]), int(run[-1]) + 1) for run in runs])

    def read_columns(self, begin: int, end: int) -> NoReturn:
        """A head is never stored transposed."""
        raise AssertionError(f"rows of {self.name}, which is transposed")
