"""GPT-Neo has its own attention: unscaled, every other layer with a window."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from mxspec.compile.trace.attention import CallInputs

BUILT_WITH = "eager"


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Replace its `_attn` by the operator."""
    for module in model.modules():
        if isinstance(module, GPTNeoSelfAttention):
            module.layer_idx = module.layer_id
            window = model.config.window_size if module.attention_type == "local" else None
            module._attn = partial(_attend, call, module, window)
            del module.bias  # its mask


def _attend(
    call: CallInputs,
    module: GPTNeoSelfAttention,
    window: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
) -> tuple[Tensor, None]:
    output = call.attend(module, query, key, value, mask, scaling=1.0, sliding_window=window)[0]
    return output.transpose(1, 2), None
