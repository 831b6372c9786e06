"""Helium's norm is spelled out in a way that no fusion knows."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.models.helium.modeling_helium import HeliumRMSNorm

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.norms import RmsNorm


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """The norms become one node each."""
    for path, module in list(model.named_modules()):
        if isinstance(module, HeliumRMSNorm):
            model.set_submodule(path, RmsNorm(module.weight, module.variance_epsilon))
