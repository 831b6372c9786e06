"""The modules that replace transformers' own while a model is traced, and the swap itself.

Norms, GELUs and positions that a model computes in several operators are one node each here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP, expert_matrices, experts_modules
from mxspec.compile.trace.attention import CallInputs, Positions
from mxspec.compile.trace.packed import MatmulSource, PackedExperts, PackedLinear, PackedLmHead
from mxspec.formats.errors import UnsupportedModelError
from mxspec.formats.weight_format import Activations, weight_format

Buckets = Callable[[Tensor], Tensor]  # from distances, key position − query position, to rows of a table


class DistanceBias(nn.Module):
    """float32[heads, D]: the bias of each distance from `first` on; beyond both ends it is constant.

    The model's `buckets` of the distances from `furthest_back` to `furthest_ahead` are looked up in its table [buckets,
    heads]; the ends are where the buckets no longer change.
    """

    def __init__(self, weight: nn.Parameter, buckets: Buckets, furthest_back: int, furthest_ahead: int) -> None:
        super().__init__()
        rows = buckets(torch.arange(-furthest_back, furthest_ahead + 1))
        changes = torch.nonzero(rows[1:] != rows[:-1]).flatten().tolist()
        begin, end = (changes[0], changes[-1] + 2) if changes else (0, 1)
        self.first = begin - furthest_back
        self.weight = weight
        self.rows = nn.Buffer(rows[begin:end].contiguous())

    def forward(self) -> Tensor:
        return nn.functional.embedding(self.rows, self.weight).transpose(0, 1)


def adapt_t5(model: PreTrainedModel) -> None:
    """Make biases tables by distance, except in cross-attention; use plain products, which read no type of weights."""
    attentions: list[Any] = [module for module in model.modules() if hasattr(module, "relative_attention_num_buckets")]
    for module in attentions:
        if not module.has_relative_attention_bias:
            module.has_relative_attention_bias = True  # otherwise it makes zeros in the size of a call's scores
            module.compute_bias = _no_bias
    for stack in (model.get_encoder(), model.get_decoder()):
        first: Any = stack.block[0].layer[0].SelfAttention
        bias = distance_bias(first)
        first.set_submodule("relative_attention_bias", bias)
        first.compute_bias = partial(_compute_bias, bias)
        for block in stack.block:
            block.layer[0].SelfAttention.first_distance = bias.first
            dense = block.layer[-1].DenseReluDense
            dense.forward = partial(_gated if hasattr(dense, "wi_1") else _plain, dense)


def distance_bias(module: Any) -> DistanceBias:
    """The table of an attention with a bias; beyond its first and last distance, the bias is constant."""
    furthest = int(module.relative_attention_max_distance)
    buckets = partial(
        module._relative_position_bucket,
        bidirectional=not module.is_decoder,
        num_buckets=module.relative_attention_num_buckets,
        max_distance=furthest,
    )
    return DistanceBias(module.relative_attention_bias.weight, buckets, furthest, 0 if module.is_decoder else furthest)


def _compute_bias(bias: DistanceBias, *_: Any, **__: Any) -> Tensor:
    result: Tensor = bias()
    return result


def _no_bias(*_: Any, **__: Any) -> None:
    return None


def _plain(dense: Any, hidden_states: Tensor) -> Tensor:
    output: Tensor = dense.wo(dense.act(dense.wi(hidden_states)))
    return output


def _gated(dense: Any, hidden_states: Tensor) -> Tensor:
    output: Tensor = dense.wo(dense.act(dense.wi_0(hidden_states)) * dense.wi_1(hidden_states))
    return output


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + epsilon) * weight."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return _emit("RMSNormalization", x, self.weight, self._epsilon)


class LayerNorm(nn.Module):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) * weight; a weight [heads, size] is for heads in the third axis."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon
        if weight.ndim > 1:
            self.ones = nn.Buffer(torch.ones(weight.shape[-1]))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 1:
            return _emit("LayerNormalization", x, self.weight, self._epsilon)
        return _emit("LayerNormalization", x, self.ones, self._epsilon) * self.weight


def _emit(operator: str, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.onnx.ops.symbolic(
        operator, (x, weight), {"axis": -1, "epsilon": epsilon}, dtype=x.dtype, shape=x.shape
    )


class TanhGelu(nn.Module):
    """The tanh approximation of GELU as one node instead of eight."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x, approximate="tanh")


class LearnedPositions(nn.Module):
    """Replaces a model's table: its rows, float32[1, tokens, width], at the call's positions plus `offset`."""

    def __init__(self, weight: nn.Parameter, offset: int, positions: Positions) -> None:
        super().__init__()
        self.weight = weight
        self._offset = offset
        self._positions = positions

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._positions.ids is not None
        return nn.functional.embedding(self._positions.ids + self._offset, self.weight)


class ComputedPositions(nn.Module):
    """Replaces sinusoids: rows of a computed table, at the call's positions."""

    def __init__(self, sinusoids: Tensor, positions: Positions) -> None:
        super().__init__()
        self.sinusoids = nn.Buffer(sinusoids)
        self._positions = positions

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._positions.ids is not None
        return nn.functional.embedding(self._positions.ids, self.sinusoids)


def swap_modules(
    model: PreTrainedModel,
    format_of: Callable[[str], str],
    activations: Activations,
    call: CallInputs,
    head_rows: int | None = None,
) -> PackedLmHead:
    """Replace linear layers, experts, the LM head and GELUs of several operators by mxspec's modules; return the head.

    A tied head is stored packed, with the embedding's values. With `head_rows` the head has that many rows, selected
    from those of its parameter, which goes by the head's own name. Raises UnsupportedModelError without a plain head.
    """
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    head = model.get_output_embeddings()
    packed_lm_head: PackedLmHead | None = None
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear | Conv1D):
            source = _source(module, names[id(module.weight)], format_of, activations)
            if module is head:
                packed_lm_head = _lm_head(f"{path}.weight", source, module.bias, call, head_rows)
            model.set_submodule(path, packed_lm_head if module is head else PackedLinear(source, module.bias))
        elif isinstance(module, NewGELUActivation | FastGELUActivation):
            model.set_submodule(path, TanhGelu())
    _swap_experts(model, format_of, activations)
    if packed_lm_head is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no linear LM head: not a causal language model")
    return packed_lm_head


def _lm_head(
    name: str, source: MatmulSource, bias: nn.Parameter | None, call: CallInputs, rows: int | None
) -> PackedLmHead:
    if rows is not None:
        source = replace(source, parameter=name, n=rows)
        bias = None if bias is None else nn.Parameter(torch.empty(rows, device="meta"))
    return PackedLmHead(source, bias, call)


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
