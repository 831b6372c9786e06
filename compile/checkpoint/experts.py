"""The weights of a mixture of experts: a layer's matrices of all experts become one tall matrix.

transformers stores them as one parameter of three dimensions, [experts, rows, k], or transposed, [experts, k, rows].
A checkpoint has that, or a matrix for each expert, or two (gate and up) that are stacked. In each case the source of
the parameter is a matrix [experts * rows, k], from which any rows can be read: it is packed like any other matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.names import ExpertPart, expert_parts, rename
from mxspec.compile.checkpoint.tensors.expert_tensors import StackedTensor, TransposedExperts
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, Tensor, Tensors
from mxspec.formats.errors import CheckpointError

_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk")  # keys of configs
GATE_UP, DOWN = "gate_up_proj", "down_proj"  # transformers' names of an experts module's parameters


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """A parameter with matrices [rows, k] of all experts of a layer, stored [experts, k, rows] if `transposed`."""

    experts: int
    rows: int
    k: int
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the tall matrix."""
        return self.experts * self.rows, self.k

    @property
    def parameter_shape(self) -> tuple[int, int, int]:
        """The shape of transformers' parameter."""
        return (self.experts, self.k, self.rows) if self.transposed else (self.experts, self.rows, self.k)

    def as_parameter(self, tall: NDArray[Any]) -> NDArray[Any]:
        """A tall matrix in the shape of the parameter."""
        values = tall.reshape(self.experts, self.rows, self.k)
        return np.ascontiguousarray(values.transpose(0, 2, 1)) if self.transposed else values


def experts_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules with the experts of a layer, by transformers' interface for them, with their paths."""
    for path, module in model.named_modules():
        if all(hasattr(module, name) for name in ("is_transposed", "has_gate", "has_bias", "_apply_gate")):
            yield path, module


def expert_matrices(model: PreTrainedModel) -> dict[str, ExpertMatrix]:
    """The parameters with matrices of several experts, by name."""
    found = {}
    for path, module in experts_modules(model):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3:
                experts, *sides = parameter.shape
                rows, k = reversed(sides) if module.is_transposed else sides
                found[f"{path}.{name}"] = ExpertMatrix(experts, rows, k, bool(module.is_transposed))
    return found


def router_matrices(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """The n and k of matrices that choose experts and are no linear layers, by name: graphs have them in fp16 tiles."""
    experts = {matrix.experts for matrix in expert_matrices(model).values()}
    found = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D | nn.Embedding):
            for name, parameter in module.named_parameters(recurse=False):
                if name == "weight" and parameter.ndim == 2 and parameter.shape[0] in experts:
                    found[f"{path}.{name}"] = (parameter.shape[0], parameter.shape[1])
    return found


def chosen_experts(config: PreTrainedConfig) -> int | None:
    """The number of experts that a token chooses; None if the configuration does not say."""
    return next((value for key in _CHOSEN if isinstance(value := getattr(config, key, None), int)), None)


def has_experts(tensors: Tensors) -> bool:
    """Whether a checkpoint may be a mixture of experts; only then its names are worth the time."""
    return any(".experts." in name or len(tensor.shape) == 3 for name, tensor in tensors.items())


def join_experts(model: PreTrainedModel, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors, with one tall matrix for each parameter of several experts.

    Raises CheckpointError for an expert that is missing or there twice, and for a tensor of another shape.
    """
    matrices, joined = expert_matrices(model), dict(tensors)
    if not matrices:
        return joined
    names = list(tensors)
    for parameter, parts in expert_parts(model, names).items():
        if parameter in matrices:
            for part in parts:
                del joined[part.tensor]
            joined[parameter] = _stack(parameter, matrices[parameter], parts, tensors)
    found, _ = rename(model, list(joined))
    for parameter, matrix in matrices.items():
        tensor = joined.get(found.get(parameter, ""))
        if isinstance(tensor, CheckpointTensor):
            joined[found[parameter]] = _tall(tensor, parameter, matrix)
    return joined


def _tall(tensor: CheckpointTensor, parameter: str, matrix: ExpertMatrix) -> Tensor:
    if tensor.shape != matrix.parameter_shape:
        raise CheckpointError(
            f"tensor {tensor.name!r} of {tensor.shard} has shape {list(tensor.shape)}, but {parameter} is "
            f"{list(matrix.parameter_shape)}: config.json belongs to another checkpoint"
        )
    return TransposedExperts(tensor, {}) if matrix.transposed else tensor.reshaped(*matrix.shape)


def _stack(
    parameter: str, matrix: ExpertMatrix, parts: Sequence[ExpertPart], tensors: Tensors
) -> StackedTensor | MxTensor:
    found: dict[tuple[int, int], str] = {}
    for part in parts:
        twin = found.setdefault((part.expert, part.part), part.tensor)
        if twin != part.tensor:
            raise CheckpointError(f"tensors {twin!r} and {part.tensor!r} are both of expert {part.expert}")
    wanted = [(expert, part) for expert in range(matrix.experts) for part in range(parts[0].parts)]
    if missing := [place for place in wanted if place not in found]:
        raise CheckpointError(
            f"the checkpoint has no tensor for expert {missing[0][0]} of {parameter}, one of {len(missing)} that are "
            f"missing; config.json says {matrix.experts} experts"
        )
    if strange := sorted(found.keys() - set(wanted)):
        raise CheckpointError(
            f"tensor {found[strange[0]]!r} is of expert {strange[0][0]}, but config.json says {matrix.experts} experts"
        )
    sources = [tensors[found[place]] for place in wanted]
    rows = matrix.rows // parts[0].parts
    for source in sources:
        if source.shape != (rows, matrix.k):
            raise CheckpointError(
                f"tensor {source.name!r} of {source.shard} has shape {list(source.shape)}, expected "
                f"{[rows, matrix.k]} by config.json, which belongs to another checkpoint"
            )
    kinds = {source.dtype for source in sources}
    if len(kinds) > 1:
        raise CheckpointError(
            f"the experts of {parameter} are stored as {' and '.join(sorted(kinds))}, expected one type"
        )
    return stack_matrices(sources)


def stack_matrices(sources: Sequence[Tensor]) -> MxTensor | StackedTensor:
    """Matrices [rows, k] one below the other; one matrix of codes, if all have codes in one layout."""
    first, stacked = sources[0], StackedTensor(tuple(sources))
    if not isinstance(first, MxTensor):
        return stacked
    pairs = [
        (source.base, source.scales)
        for source in sources
        if isinstance(source, MxTensor) and (source.format, source.unpack) == (first.format, first.unpack)
    ]
    if len(pairs) < len(sources):
        return stacked
    codes, scales = (StackedTensor(tuple(parts)) for parts in zip(*pairs, strict=True))
    return MxTensor(codes, scales, first.format, first.unpack)
