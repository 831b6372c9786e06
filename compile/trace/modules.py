"""The modules that replace transformers' own while a model is traced, and the swap itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP, expert_matrices, experts_modules
from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.experts import PackedExperts
from mxspec.compile.trace.packed import MatmulSource, PackedModule
from mxspec.formats.errors import UnsupportedModelError
from mxspec.formats.weight_format import Activations, weight_format


class PackedLinear(PackedModule):
    """A linear layer that emits mxspec::PackedMatMul; its weight is the uint8 tile initializer."""

    weight: Tensor

    def __init__(self, source: MatmulSource, bias: nn.Parameter | None) -> None:
        super().__init__({"weight": source})
        self.source = source
        self.in_features, self.out_features = source.k, source.n
        self.bias = bias

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the PackedMatMul node."""
        return self.source.attributes

    def forward(self, x: Tensor) -> Tensor:
        return torch.onnx.ops.symbolic(
            PACKED_MATMUL.qualified,
            (x, self.weight) if self.bias is None else (x, self.weight, self.bias),
            self.attributes,
            dtype=torch.float32,
            shape=(*x.shape[:-1], self.source.n),
            version=1,
        )


class PackedHead(PackedLinear):
    """The LM head: selects the hidden states of the tokens in logits_to_keep, and multiplies only these.

    From hidden states float32[1, tokens, k] it makes float32[rows, n].
    """

    def __init__(self, source: MatmulSource, bias: nn.Parameter | None, call: CallInputs) -> None:
        super().__init__(source, bias)
        self._call = call

    def forward(self, x: Tensor) -> Tensor:
        positions = self._call.logits_to_keep
        assert positions is not None
        kept = torch.onnx.ops.symbolic(
            "Gather", (x.squeeze(0), positions), {"axis": 0}, dtype=x.dtype, shape=(positions.shape[0], x.shape[-1])
        )
        return super().forward(kept)


class TanhGelu(nn.Module):
    """The tanh approximation of GELU as one node instead of eight."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x, approximate="tanh")


def swap_modules(
    model: PreTrainedModel,
    format_of: Callable[[str], str],
    activations: Activations,
    call: CallInputs,
    head_rows: int | None = None,
) -> PackedHead:
    """Replace linear layers, experts, the LM head and GELUs of several operators by mxspec's modules; return the head.

    A tied head is stored packed, with the embedding's values. With `head_rows` the head has that many rows, selected
    from those of its parameter, which goes by the head's own name. Raises UnsupportedModelError without a plain head.
    """
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    head = model.get_output_embeddings()
    packed_head: PackedHead | None = None
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear | Conv1D):
            source = _source(module, names[id(module.weight)], format_of, activations)
            if module is head:
                packed_head = _packed_head(f"{path}.weight", source, module.bias, call, head_rows)
            model.set_submodule(path, packed_head if module is head else PackedLinear(source, module.bias))
        elif isinstance(module, NewGELUActivation | FastGELUActivation):
            model.set_submodule(path, TanhGelu())
    _swap_experts(model, format_of, activations)
    if packed_head is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no linear LM head: not a causal language model")
    return packed_head


def _packed_head(
    name: str, source: MatmulSource, bias: nn.Parameter | None, call: CallInputs, rows: int | None
) -> PackedHead:
    if rows is not None:
        source = replace(source, parameter=name, n=rows)
        bias = None if bias is None else nn.Parameter(torch.empty(rows, device="meta"))
    return PackedHead(source, bias, call)


def _source(
    layer: nn.Linear | Conv1D, parameter: str, format_of: Callable[[str], str], activations: Activations
) -> MatmulSource:
    transpose = isinstance(layer, Conv1D)
    k, n = layer.weight.shape if transpose else layer.weight.shape[::-1]
    return _packed(parameter, n, k, format_of, activations, transpose=transpose)


def _packed(
    parameter: str,
    n: int,
    k: int,
    format_of: Callable[[str], str],
    activations: Activations,
    *,
    transpose: bool = False,
) -> MatmulSource:
    format_name = format_of(parameter)
    taken = activations if activations in weight_format(format_name).activations else "int16"
    return MatmulSource(parameter, format_name, n, k, transpose, taken)


def _swap_experts(model: PreTrainedModel, format_of: Callable[[str], str], activations: Activations) -> None:
    """Replace the modules of a mixture's experts."""
    matrices = expert_matrices(model)
    for path, module in list(experts_modules(model)):
        gate_up, down = (f"{path}.{name}" for name in (GATE_UP, DOWN))
        if not {gate_up, down} <= matrices.keys():
            raise UnsupportedModelError(
                f"{type(module).__name__}: experts without {GATE_UP} and {DOWN} are not supported"
            )
        sources = {
            leaf: _packed(f"{path}.{leaf}", *matrices[f"{path}.{leaf}"].shape, format_of, activations)
            for leaf in (GATE_UP, DOWN)
        }
        model.set_submodule(path, PackedExperts(module, sources, matrices[gate_up].experts))
