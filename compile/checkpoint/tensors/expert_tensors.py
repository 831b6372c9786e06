"""Matrices of all experts of a layer as one tall matrix: expert after expert, a row for each output."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.derived import DerivedTensor
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, Tensor

Read = Callable[[Tensor, int, int], NDArray[Any]]  # rows [begin, end) of a part, as values or as bytes


@dataclass(frozen=True)
class JoinedRows(DerivedTensor):
    """A matrix that is joined from parts of one type, which `_read` finds."""

    parts: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        return f"{self.parts[0].name} … {self.parts[-1].name}"

    @property
    def shard(self) -> str:
        return self.parts[0].shard

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def identity(self) -> tuple[int, ...]:
        return tuple(number for identity in sorted({part.identity for part in self.parts}) for number in identity)

    @property
    def origins(self) -> frozenset[str]:
        return frozenset[str]().union(*(part.origins for part in self.parts))

    def read_rows(self, begin: int, end: int) -> NDArray[Any]:
        return self._read(begin, end, lambda part, first, last: part.read_rows(first, last))

    def read_bytes(self, begin: int, end: int) -> NDArray[np.uint8]:
        return self._read(begin, end, lambda part, first, last: part.read_bytes(first, last))

    @abstractmethod
    def _read(self, begin: int, end: int, read: Read) -> NDArray[Any]:
        """Rows [begin, end), by what `read` gives of the parts."""


@dataclass(frozen=True)
class StackedTensor(JoinedRows):
    """Matrices [rows, k], one below the other: those of one expert after those of another."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self._ends[-1], *self.parts[0].shape[1:]

    @cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(part.shape[0] for part in self.parts))

    def _read(self, begin: int, end: int, read: Read) -> NDArray[Any]:
        pieces = []
        while begin < end:
            index = bisect_right(self._ends, begin)
            start = self._ends[index] - self.parts[index].shape[0]
            last = min(end, self._ends[index])
            pieces.append(read(self.parts[index], begin - start, last - start))
            begin = last
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class TransposedExperts(DerivedTensor):
    """A tensor [experts, k, rows] as a tall matrix [experts * rows, k]; the last expert that was read is kept."""

    base: CheckpointTensor
    kept: dict[int, NDArray[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        experts, k, rows = self.base.shape
        return experts * rows, k

    def read_rows(self, begin: int, end: int) -> NDArray[Any]:
        rows = self.base.shape[2]
        pieces = []
        for expert in range(begin // rows, -(-end // rows)):
            first = max(begin - expert * rows, 0)
            pieces.append(self._expert(expert)[first : min(end - expert * rows, rows)])
        return np.concatenate(pieces)

    def _expert(self, expert: int) -> NDArray[Any]:
        """The matrix [rows, k] of one expert."""
        if expert not in self.kept:
            self.kept.clear()
            self.kept[expert] = np.ascontiguousarray(self.base.read_rows(expert, expert + 1)[0].T)
        return self.kept[expert]


@dataclass(frozen=True)
class AlternatingTensor(JoinedRows):
    """Two tensors of one shape: one row of the first, then one of the other, or numbers in turn `along` axis 1."""

    along: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        sides = list(self.parts[0].shape)
        sides[self.along] *= 2
        return tuple(sides)

    def _read(self, begin: int, end: int, read: Read) -> NDArray[Any]:
        first, last = (begin, end) if self.along else (begin // 2, -(-end // 2))
        both = np.stack([read(part, first, last) for part in self.parts], axis=self.along + 1)
        if self.along:
            return both.reshape(end - begin, -1)
        rows = both.reshape(-1, *both.shape[2:])
        return rows[begin - 2 * first : end - 2 * first]
