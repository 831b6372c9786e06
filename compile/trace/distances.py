"""T5's bias by distance: a table for all distances, from which attention adds each score's entry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

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
