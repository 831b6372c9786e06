"""Falcon has its own attention, which repeats keys and values for every query, and ALiBi in some checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.falcon import modeling_falcon
from transformers.models.falcon.modeling_falcon import FalconAttention

from mxspec.compile.trace.attention import CallInputs

BUILT_WITH = "eager"


def prepare(config: PreTrainedConfig) -> None:
    """Set the number of key-value heads under the usual name."""
    one = config.multi_query and not config.new_decoder_architecture
    config.num_key_value_heads = 1 if one else config.num_kv_heads


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Replace its attention, which splits the product itself."""
    for module in model.modules():
        if isinstance(module, FalconAttention):
            if model.config.alibi:
                module.register_buffer("alibi_slopes", _slopes(module))
            module.forward = partial(_forward, module, call)


def _slopes(module: FalconAttention) -> Tensor:
    """The slopes of the heads; rounded to bfloat16 and scaled with the scores, as in the model."""
    positions = modeling_falcon.build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)
    slopes: Tensor = positions[:, 0, 1] * module.inv_norm_factor
    return slopes


def _forward(
    module: FalconAttention,
    call: CallInputs,
    hidden_states: Tensor,
    alibi: Tensor | None = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    heads, kv_heads, size = module.num_heads, module.num_kv_heads, module.head_dim
    sizes = [heads // kv_heads * size, size, size]  # of a key-value head's queries, key and value
    product = module.query_key_value(hidden_states)
    tokens = product.shape[1]
    pieces = product if kv_heads == 1 else product.view(1, tokens, kv_heads, sum(sizes))
    query, key, value = (piece.reshape(1, tokens, -1, size).transpose(1, 2) for piece in pieces.split(sizes, dim=-1))
    if alibi is None:
        assert position_embeddings is not None
        query, key = modeling_falcon.apply_rotary_pos_emb(query, key, *position_embeddings)
    output = call.attend(
        module, query, key, value, None, module.inv_norm_factor, slopes=getattr(module, "alibi_slopes", None)
    )[0]
    return module.dense(output.reshape(1, tokens, heads * size)), None
