"""Gemma 4 computes its norm with a power that no fusion recognises; the norm of values has no weight."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm, Gemma4TextAttention

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.norms import RmsNorm


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Make each norm one node."""
    sizes = {
        id(module.v_norm): module.head_dim for module in model.modules() if isinstance(module, Gemma4TextAttention)
    }
    for path, module in list(model.named_modules()):
        if isinstance(module, Gemma4RMSNorm):
            weight = module.weight if module.with_scale else nn.Buffer(torch.ones(sizes[id(module)]))
            model.set_submodule(path, RmsNorm(weight, module.eps))
