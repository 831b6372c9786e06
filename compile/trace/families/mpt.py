"""MPT has its own attention, with ALiBi, in a model that requires a mask."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.mpt.modeling_mpt import MptAttention, MptModel, build_mpt_alibi_tensor

from mxspec.compile.trace.attention import CallInputs


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Replace its attention by the operator, and run its layers without a mask."""
    for module in model.modules():
        if isinstance(module, MptAttention):
            positions = build_mpt_alibi_tensor(module.n_heads, 2)
            module.register_buffer("alibi_slopes", positions[:, 0, 1] - positions[:, 0, 0])
            module.forward = partial(_attend, module, call)
        elif isinstance(module, MptModel):
            module.forward = partial(_decode, module)


def _attend(module: MptAttention, call: CallInputs, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    product = module.Wqkv(hidden_states)
    if module.clip_qkv:
        product = product.clamp(-module.clip_qkv, module.clip_qkv)
    tokens = product.shape[1]
    pieces = product.chunk(3, dim=2)
    query, key, value = (piece.reshape(1, tokens, module.n_heads, -1).transpose(1, 2) for piece in pieces)
    output = call.attend(module, query, key, value, None, module.softmax_scale, slopes=module.alibi_slopes)[0]
    return module.out_proj(output.reshape(hidden_states.shape)), None


def _decode(module: MptModel, input_ids: Tensor, **_: Any) -> BaseModelOutputWithPast:
    hidden_states = module.wte(input_ids)
    for block in module.blocks:
        hidden_states, _ = block(hidden_states, position_bias=None, attention_mask=None)
    return BaseModelOutputWithPast(last_hidden_state=module.norm_f(hidden_states))
