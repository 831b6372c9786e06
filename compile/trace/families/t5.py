"""T5 adds a bias by distance to scores, reads the type of a product's weights, and has its own norm."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.distances import DistanceBias
from mxspec.compile.trace.norms import RmsNorm


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Make biases tables by distance, except in cross-attention; use plain products, and one node for each norm."""
    for path, module in list(model.named_modules()):
        norm: Any = module
        if path.endswith("layer_norm"):
            model.set_submodule(path, RmsNorm(norm.weight, norm.variance_epsilon))
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
