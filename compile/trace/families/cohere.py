"""Cohere computes its norm without a bias in several operators, perhaps also for heads of queries and keys."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.models.cohere.modeling_cohere import CohereLayerNorm

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.norms import LayerNorm


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Make each norm one node."""
    for path, module in list(model.named_modules()):
        if isinstance(module, CohereLayerNorm):
            model.set_submodule(path, LayerNorm(module.weight, module.variance_epsilon))
