"""Helium computes its norm in operators that no fusion recognises."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.models.helium.modeling_helium import HeliumRMSNorm

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.norms import RmsNorm


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Make each norm one node."""
    for path, module in list(model.named_modules()):
        if isinstance(module, HeliumRMSNorm):
            model.set_submodule(path, RmsNorm(module.weight, module.variance_epsilon))
