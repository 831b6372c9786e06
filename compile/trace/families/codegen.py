"""CodeGen has GPT-J's attention, and computes queries, values and keys in four groups of heads."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.models.codegen.modeling_codegen import CodeGenAttention

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.families.gptj import patch_attention

BUILT_WITH = "eager"


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Patch it as GPT-J."""
    patch_attention(model, call, CodeGenAttention)
