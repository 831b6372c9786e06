"""The experts of a layer in a GGUF file: gate, up and down of all experts, three tensors [experts, rows, k].

A checkpoint's parameters are joined from them as they are read, some rows at a time: an expert's rows of gate, then of
up, or, in gpt-oss, one row of each in turn. Blocks of MXFP4 stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP, stack_matrices
from mxspec.compile.checkpoint.gguf.family import EXPERTS
from mxspec.compile.checkpoint.gguf.tensor import GgufField, GgufTensor
from mxspec.compile.checkpoint.tensors.expert_tensors import AlternatingTensor
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor, unpack_halves
from mxspec.compile.checkpoint.tensors.tensor import Tensor
from mxspec.formats.errors import CheckpointError

_GATE, _UP, _DOWN = EXPERTS


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
        joined[f"{GATE_UP}_bias"] = AlternatingTensor(parts.biases[_GATE], parts.biases[_UP], along=1)
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
        return AlternatingTensor(first, second)
    codes, scales = (AlternatingTensor(*both) for both in ((first.base, second.base), (first.scales, second.scales)))
    return MxTensor(codes, scales, first.format, first.unpack)
