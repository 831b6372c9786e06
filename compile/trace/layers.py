"""The decoder layers of a model, whatever its class calls them."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.settings.architecture import architecture_name
from mxspec.formats.errors import UnsupportedModelError


def layers_of(model: nn.Module, config: PreTrainedConfig) -> list[nn.Module]:
    """In their order. Raises UnsupportedModelError for a model without a list of them."""
    count = config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UnsupportedModelError(f"{architecture_name(config)}: no list of its {count} decoder layers was found")


def final_norm(model: nn.Module, config: PreTrainedConfig) -> nn.Module:
    """The norm after the last layer, which Llama's descendants call `norm`. Raises UnsupportedModelError without."""
    found = getattr(getattr(model, "base_model", None), "norm", None)
    if not isinstance(found, nn.Module):
        raise UnsupportedModelError(f"{architecture_name(config)}: no norm was found after its decoder layers")
    return found
