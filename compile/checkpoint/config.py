"""What config.json says about a checkpoint."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from mxspec.formats.errors import CheckpointError, UnsupportedModelError

CONFIG = "config.json"


def load_config(checkpoint_dir: Path) -> PreTrainedConfig:
    """The checkpoint's configuration. Raises CheckpointError for none, UnsupportedModelError for strange ones."""
    if not (checkpoint_dir / CONFIG).is_file():
        raise CheckpointError(f"no config.json in {checkpoint_dir}: expected a transformers checkpoint directory")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint_dir, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(f"transformers cannot read {checkpoint_dir / CONFIG}: {reason}") from error
    return config


def architecture_name(config: PreTrainedConfig) -> str:
    """Such as LlamaForCausalLM; the model type where a configuration does not say."""
    return str((config.architectures or [config.model_type])[0])
