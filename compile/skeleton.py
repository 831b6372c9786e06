"""A transformers model without weights: its parameters have shapes only, its buffers are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from mxspec.formats.errors import CheckpointError, UnsupportedModelError

ATTENTION_NAME = "mxspec"  # the name that compile/attention.py registers with transformers


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


def load_config(checkpoint_dir: Path) -> PreTrainedConfig:
    """The checkpoint's configuration. Raises CheckpointError for none, UnsupportedModelError for strange ones."""
    if not (checkpoint_dir / "config.json").is_file():
        raise CheckpointError(f"no config.json in {checkpoint_dir}: expected a transformers checkpoint directory")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint_dir, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(f"transformers cannot read {checkpoint_dir / 'config.json'}: {reason}") from error
    return config


def build_skeleton(config: PreTrainedConfig) -> PreTrainedModel:
    """transformers' own class for `config`: evaluation mode, float32, parameters on the meta device, buffers computed.

    Raises UnsupportedModelError for what is no causal language model or does not take our attention function.
    """
    name = architecture_name(config)
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError(
            f"{name}: the checkpoint is already quantised; give the original floating-point one"
        )
    try:
        with _parameters_without_values(), no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, attn_implementation=ATTENTION_NAME, dtype=torch.float32
            )
    except (ValueError, ImportError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(f"{name}: transformers cannot build it for export: {reason}") from error
    model.tie_weights()  # part of the initialisation that was skipped
    return model.eval()


def architecture_name(config: PreTrainedConfig) -> str:
    """Such as LlamaForCausalLM; the model type where a configuration does not say."""
    return str((config.architectures or [config.model_type])[0])
