"""What a configuration says of the model's shape, under whatever names its architecture has for it."""

from __future__ import annotations

from transformers import PreTrainedConfig

from mxspec.formats.errors import UnsupportedModelError

_WINDOWED = ("sliding_attention", "local")  # the second is GPT-Neo's


def architecture_name(config: PreTrainedConfig) -> str:
    """The architecture, such as LlamaForCausalLM, or the model type if the configuration names none."""
    return str((config.architectures or [config.model_type])[0])


def context_limit(config: PreTrainedConfig) -> int | None:
    """The number of positions that the model knows; None if its configuration has none, as with most ALiBi models."""
    names = ("max_position_embeddings", "max_seq_len")  # the second is MPT's
    return next((limit for name in names if (limit := getattr(config, name, None))), None)


def rope_switch(config: PreTrainedConfig) -> int | None:
    """The longest text that has other rotary frequencies than longer ones have; None where all have the same.

    So it is with longrope. Those of `dynamic` change beyond the positions that a model knows, where no text gets.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    lengths = [
        kind.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or config.max_position_embeddings
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min(lengths, default=None)


def decoder_layers(config: PreTrainedConfig) -> int:
    """Number of the decoder's layers. Raises UnsupportedModelError if the configuration does not say."""
    names = ("num_decoder_layers", "decoder_layers") if config.is_encoder_decoder else ("num_hidden_layers",)
    return _stated(config, *names)


def decoder_heads(config: PreTrainedConfig) -> int:
    """Number of query heads in the decoder's attention; raises as decoder_layers."""
    names = ("num_attention_heads",)
    return _stated(config, *(("decoder_attention_heads", *names) if config.is_encoder_decoder else names))


def head_size(config: PreTrainedConfig) -> int:
    """The size of a head in the decoder's attention; raises as decoder_layers."""
    return int(getattr(config, "head_dim", None) or _stated(config, "hidden_size") // decoder_heads(config))


def layer_windows(config: PreTrainedConfig) -> tuple[int, ...]:
    """Tokens that each of the decoder's layers sees, 0 for all; raises as decoder_layers."""
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None) or 0
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    layers = decoder_layers(config)
    return tuple(window if kind in _WINDOWED else 0 for kind in kinds or ["sliding_attention"] * layers)


def _stated(config: PreTrainedConfig, *names: str) -> int:
    """The first of these settings that the configuration has."""
    found = next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)
    if found is None:
        name = architecture_name(config)
        raise UnsupportedModelError(f"{name}: not a plain text decoder (its config.json has no {names[0]})")
    return found
