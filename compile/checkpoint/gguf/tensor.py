"""A tensor of a GGUF file as a Hugging Face checkpoint would have it: other names, rows in their order, no shift.

The peer stores the rows of q and k of Llama's kind so that the two numbers that rotate together are neighbours. Of a
head of d rows, row j * d/2 + i of a checkpoint (j = 0, 1) is row 2 * i + j of the file.

The experts of a layer are three tensors [experts, rows, k]: gate, up and down of all. A checkpoint's parameters are
joined from them as they are read, some rows at a time: an expert's rows of gate, then of up, or, in gpt-oss, one row of
each in turn. Blocks of MXFP4 stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP, stack_matrices
from mxspec.compile.checkpoint.gguf.blocks import TYPES_BY_NAME, BlockType
from mxspec.compile.checkpoint.gguf.family import EXPERTS
from mxspec.compile.checkpoint.tensors.derived import DerivedTensor
from mxspec.compile.checkpoint.tensors.expert_tensors import AlternatingTensor
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor, unpack_halves
from mxspec.compile.checkpoint.tensors.tensor import FileTensor, Tensor
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

EXACT = ("F32", "F16", "BF16")  # types that hold numbers one by one
_GATE, _UP, _DOWN = EXPERTS


@dataclass(frozen=True, slots=True)
class GgufTensor(FileTensor):
    """A tensor under its name in a checkpoint; values are read as float32.

    `heads` of its rows are interleaved in the file; `shift` was added to every value there.
    """

    heads: int = 0
    shift: float = 0.0

    @property
    def dtype(self) -> str:
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


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The tensors of a layer's experts: matrices, and biases where the family has them, by their names in EXPERTS."""

    layer: int
    matrices: dict[str, GgufTensor] = field(default_factory=dict)
    biases: dict[str, GgufTensor] = field(default_factory=dict)


def join_parts(path: Path, parts: LayerParts, experts: int, *, alternating: bool) -> dict[str, Tensor]:
    """The parameters of the experts' module by their names there.

    Raises CheckpointError for a tensor that is missing or has another number of experts.
    """
    for kind, tensors, sides in (("weight", parts.matrices, 3), ("bias", parts.biases, 2)):
        if missing := [name for name in EXPERTS if tensors and name not in tensors]:
            raise CheckpointError(f"{path}: tensor 'blk.{parts.layer}.{missing[0]}.{kind}' is missing")
        for name, tensor in tensors.items():
            if len(tensor.shape) != sides or tensor.shape[0] != experts:
                raise CheckpointError(
                    f"{path}: tensor 'blk.{parts.layer}.{name}.{kind}' has shape {list(tensor.shape)}, expected "
                    f"{sides} dimensions, the first of {experts}, the number of experts by expert_count"
                )
    gate, up = parts.matrices[_GATE], parts.matrices[_UP]
    _require_one_shape(path, parts.layer, gate, up)
    joined: dict[str, Tensor] = {
        GATE_UP: _alternate(_tall(gate), _tall(up)) if alternating else _one_by_one(gate, up),
        DOWN: as_source(_tall(parts.matrices[_DOWN])),
    }
    if parts.biases:
        joined[f"{GATE_UP}_bias"] = AlternatingTensor((parts.biases[_GATE], parts.biases[_UP]), along=1)
        joined[f"{DOWN}_bias"] = parts.biases[_DOWN]
    return joined


def as_source(tensor: GgufTensor) -> Tensor:
    """The tensor; for a matrix in MXFP4 its codes and scales."""
    if tensor.origin != "MXFP4" or len(tensor.shape) != 2:
        return tensor
    return MxTensor(GgufField(tensor, "qs"), GgufField(tensor, "e"), "mxfp4_e2m1", unpack_halves)


def _require_one_shape(path: Path, layer: int, gate: GgufTensor, up: GgufTensor) -> None:
    if gate.shape != up.shape:
        raise CheckpointError(
            f"{path}: tensor 'blk.{layer}.{_UP}.weight' has shape {list(up.shape)}, expected {list(gate.shape)}, "
            f"that of {_GATE}"
        )


def _tall(tensor: GgufTensor) -> GgufTensor:
    experts, rows, k = tensor.shape
    return tensor.reshaped(experts * rows, k)


def _one_by_one(gate: GgufTensor, up: GgufTensor) -> Tensor:
    """Of each expert gate, then up."""
    both = [as_source(_expert(tensor, expert)) for expert in range(gate.shape[0]) for tensor in (gate, up)]
    return stack_matrices(both)


def _expert(tensor: GgufTensor, expert: int) -> GgufTensor:
    """One expert's matrix [rows, k]."""
    size = tensor.stored.bytes // tensor.shape[0]
    stored = replace(tensor.stored, shape=tensor.shape[1:], offset=tensor.stored.offset + expert * size, bytes=size)
    return replace(tensor, stored=stored)


def _alternate(gate: GgufTensor, up: GgufTensor) -> Tensor:
    """A row of gate, then one of up."""
    first, second = as_source(gate), as_source(up)
    if not (isinstance(first, MxTensor) and isinstance(second, MxTensor)):
        return AlternatingTensor((first, second))
    codes, scales = (AlternatingTensor(both) for both in ((first.base, second.base), (first.scales, second.scales)))
    return MxTensor(codes, scales, first.format, first.unpack)
