"""A transformers model without weights: its parameters have shapes only, its buffers are real."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from mxspec.compile.checkpoint.names import model_class, tie_parameters
from mxspec.compile.checkpoint.settings.architecture import architecture_name, require_plain_decoder
from mxspec.compile.checkpoint.settings.config import one_line
from mxspec.formats.errors import UnsupportedModelError

ATTENTION_NAME = "mxspec"  # the name by which transformers knows the attention function of trace/attention.py


@contextmanager
def _parameters_without_values() -> Iterator[None]:
    """Move every parameter to the meta device as it is registered: its pages are never touched and cost nothing."""
    register = nn.Module.register_parameter

    def register_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = register_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def build_skeleton(config: PreTrainedConfig, attention: str | None = ATTENTION_NAME) -> PreTrainedModel:
    """transformers' own class for `config`: evaluation mode, float32, parameters on the meta device, buffers computed.

    `attention` is mxspec's function, to be called while it is registered (`CallInputs.registered`), or None for
    transformers' default. Raises UnsupportedModelError for a model that is not a plain decoder, and for settings that
    change the meaning of a graph; the referee compares the graph with transformers later (check/referee.py).
    """
    name = architecture_name(config)
    require_plain_decoder(config)
    if getattr(config, "quantization_config", None):
        raise UnsupportedModelError(f"{name}: its config.json sets quantization_config, which cannot be compiled")
    with _parameters_without_values(), no_init_weights():
        own = copy.deepcopy(config)  # transformers writes the attention's name into the config
        try:
            model: PreTrainedModel = model_class(config).from_config(
                own, attn_implementation=attention, dtype=torch.float32
            )
        except Exception as error:  # a class raises various errors for unexpected values
            raise UnsupportedModelError(f"{name}: transformers cannot build it: {one_line(error)}") from None
    tie_parameters(model)  # part of the initialisation that was skipped
    return model.eval()


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
