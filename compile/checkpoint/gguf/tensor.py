"""A tensor of a GGUF file as a Hugging Face checkpoint would have it: other names, rows in their order, no shift.

The peer stores the rows of q and k of Llama's kind so that the two numbers that rotate together are neighbours. Of a
head of d rows, row j * d/2 + i of a checkpoint (j = 0, 1) is row 2 * i + j of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.gguf.blocks import TYPES_BY_NAME, BlockType
from mxspec.compile.checkpoint.tensors.derived import DerivedTensor
from mxspec.compile.checkpoint.tensors.tensor import FileTensor
from mxspec.formats.errors import UnsupportedModelError

EXACT = ("F32", "F16", "BF16")  # types that hold numbers one by one


@dataclass(frozen=True, slots=True)
class GgufTensor(FileTensor):
    """A tensor under its name in a checkpoint; values are read as float32.

    `heads` of its rows are interleaved in the file; `shift` was added to every value there.
    """

    heads: int = 0
    shift: float = 0.0

    @property
    def dtype(self) -> str:
        """Type of what is read."""
        return "float32"

    @property
    def type(self) -> BlockType:
        """How its blocks become values."""
        return TYPES_BY_NAME[self.stored.dtype]

    @property
    def origin(self) -> str:
        """Type of its blocks, such as Q4_K."""
        return self.stored.dtype

    @property
    def origins(self) -> frozenset[str]:
        """Its type if its values were rounded to blocks."""
        return frozenset() if self.origin in EXACT else frozenset({self.origin})

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Values of rows [begin, end): float32[rows, k], or float32[rows] of a vector."""
        values = self.type.decode(self.read_blocks(begin, end)).reshape(-1, *self.shape[1:])
        return values - np.float32(self.shift) if self.shift else values

    def read_columns(self, begin: int, end: int) -> NoReturn:
        """Only of matrices that are stored transposed, which no supported family has."""
        raise UnsupportedModelError(
            f"tensor {self.name!r} of {self.shard} is stored transposed, which is not supported"
        )

    def read_blocks(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Rows [begin, end) as uint8[rows, bytes of a row]."""
        if not self.heads:
            return self.read_bytes(begin, end)
        size = self.shape[0] // self.heads
        first = begin // size * size
        rows = np.arange(begin, end)
        head, half, place = rows // size * size, rows % size // (size // 2), rows % (size // 2)
        whole = self.read_bytes(first, -(-end // size) * size)
        interleaved: NDArray[np.uint8] = whole[head + 2 * place + half - first]
        return interleaved


@dataclass(frozen=True, slots=True)
class GgufField(DerivedTensor):
    """One field of the blocks of a matrix: the codes or the scales of MXFP4, as bytes of rows."""

    base: GgufTensor
    field: str

    @property
    def dtype(self) -> str:
        return "U8"

    @property
    def shape(self) -> tuple[int, ...]:
        rows, k = self.base.shape
        return rows, k // self.base.type.elements * self.base.type.layout[self.field].itemsize

    @property
    def bytes(self) -> int:
        rows, row = self.shape
        return rows * row

    def read_bytes(self, begin: int, end: int) -> NDArray[np.uint8]:
        """The field of all blocks of rows [begin, end): uint8[rows, bytes]."""
        blocks = self.base.read_blocks(begin, end).reshape(-1).view(self.base.type.layout)
        return np.ascontiguousarray(blocks[self.field]).reshape(end - begin, -1)
