"""CodeGen has an attention of its own, and computes queries, values and keys in four groups of heads."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.codegen.modeling_codegen import CodeGenAttention

from mxspec.compile.trace.attention import CallInputs

BUILT_WITH = "eager"


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Its `_attn` becomes the operator; the position tables of all layers become one."""
    layers = [module for module in model.modules() if isinstance(module, CodeGenAttention)]
    tables = layers[0].embed_positions
    for module in layers:
        module._attn = partial(_attend, call, module)
        module.embed_positions = tables


def _attend(
    call: CallInputs, module: CodeGenAttention, query: Tensor, key: Tensor, value: Tensor, mask: None
) -> tuple[Tensor, None]:
    output = call.attend(module, query, key, value, mask, scaling=1 / module.scale_attn)[0]
    return output.transpose(1, 2), None
