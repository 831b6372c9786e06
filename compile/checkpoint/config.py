"""What config.json says about a checkpoint."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from mxspec.formats.errors import CheckpointError, UnsupportedModelError


def load_config(checkpoint_dir: Path) -> PreTrainedConfig:
    """The checkpoint's configuration. Raises CheckpointError for none, UnsupportedModelError for strange ones."""
    if not (checkpoint_dir / "config.json").is_file():
        raise CheckpointError(f"no config.json in {checkpoint_dir}: expected a transformers checkpoint directory")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint_dir, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(f"transformers cannot read {checkpoint_dir / 'config.json'}: {reason}") from error
    return _text_half(config)


def _text_half(config: PreTrainedConfig) -> PreTrainedConfig:
    """The language model of a checkpoint that holds one for images as well; others as they are."""
    text = getattr(config, "text_config", None)
    if not isinstance(text, PreTrainedConfig):
        return config
    text.tie_word_embeddings = config.tie_word_embeddings  # transformers looks there
    return text


def architecture_name(config: PreTrainedConfig) -> str:
    """Such as LlamaForCausalLM; the model type where a configuration does not say."""
    return str((config.architectures or [config.model_type])[0])


def context_limit(config: PreTrainedConfig) -> int | None:
    """How many positions the model knows; None where its configuration does not say, as with most ALiBi."""
    names = ("max_position_embeddings", "max_seq_len")  # the second is MPT's
    return next((limit for name in names if (limit := getattr(config, name, None))), None)
