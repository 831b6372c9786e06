"""BLOOM has its own attention, with ALiBi."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomGelu, build_alibi_tensor

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.modules import TanhGelu


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Replace its attention by the operator, and its GELU by one node."""
    for path, module in list(model.named_modules()):
        if isinstance(module, BloomAttention):
            slopes = build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)[:, 0, 1]
            module.register_buffer("alibi_slopes", slopes)
            module.forward = partial(_forward, module, call)
        elif isinstance(module, BloomGelu):
            model.set_submodule(path, TanhGelu())


def _forward(
    module: BloomAttention, call: CallInputs, hidden_states: Tensor, residual: Tensor, **_: Any
) -> tuple[Tensor, None]:
    product = module.query_key_value(hidden_states)
    pieces = product.view(1, product.shape[1], module.num_heads, 3 * module.head_dim).chunk(3, dim=-1)
    query, key, value = (piece.transpose(1, 2) for piece in pieces)
    output = call.attend(module, query, key, value, None, module.inv_norm_factor, slopes=module.alibi_slopes)[0]
    return residual + module.dense(output.reshape(hidden_states.shape)), None
