"""GPT-J has its own attention, which already has the operator's order of heads."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gptj.modeling_gptj import GPTJAttention

from mxspec.compile.trace.attention import CallInputs

BUILT_WITH = "eager"


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Replace its `_attn` by the operator."""
    patch_attention(model, call, GPTJAttention)


def patch_attention(model: PreTrainedModel, call: CallInputs, kind: type[nn.Module]) -> None:
    """Replace `_attn` of modules of this kind by the operator, and join the position tables of all layers."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, kind)]
    tables = layers[0].embed_positions
    for module in layers:
        module._attn = partial(_attend, call, module)
        module.embed_positions = tables


def _attend(
    call: CallInputs, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None
) -> tuple[Tensor, None]:
    output = call.attend(module, query, key, value, mask, scaling=1 / module.scale_attn)[0]
    return output.transpose(1, 2), None
