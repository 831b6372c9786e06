"""Cohere 2 computes its norm without a bias in several operators."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.models.cohere2.modeling_cohere2 import Cohere2LayerNorm

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.norms import LayerNorm


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Make each norm one node."""
    for path, module in list(model.named_modules()):
        if isinstance(module, Cohere2LayerNorm):
            model.set_submodule(path, LayerNorm(module.weight, module.variance_epsilon))
