"""What a configuration says of the model, under whatever names its architecture has for it: its shape and its kind.

Only plain decoders are supported, whose layers have attention and a feed-forward, and encoder-decoders whose two parts
are plain.
"""

from __future__ import annotations

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto

from mxspec.compile.heads.head import HeadConfig
from mxspec.formats.errors import UnsupportedModelError

ONLY_PLAIN = "such models are not supported, only plain decoders and encoder-decoders are"  # the end of a refusal
# Settings by which transformers' configurations show their kind: a value above the number means that kind.
_SIGNS = (
    ("a decoder that wants another model's states", ("add_cross_attention",), 0),
    ("a mixture of experts beside plain layers", ("enable_moe_block",), 0),
    ("a model of several residual streams", ("altup_num_inputs",), 1),
    ("a model with an embedding for each layer", ("hidden_size_per_layer_input",), 0),
    ("a model whose layers share keys and values", ("num_kv_shared_layers",), 0),
    ("a model with multi-head latent attention", ("kv_lora_rank",), 0),
    ("an encoder, which sees what follows", ("use_bidirectional_attention",), 0),
    (
        "a state-space model",
        ("state_size", "ssm_state_size", "mamba_d_state", "attention_hidden_size", "lru_width", "mamba_num_heads"),
        0,
    ),
)
# transformers' lists of model types by what they are for, of which the first that has a model type says what it is.
_OTHER_TASKS = (
    ("a model of speech", auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
    ("a masked language model, an encoder", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    ("a model of images and text", auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    ("a model that compares images with text", auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    ("a model of images", auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    ("a model of images", auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES),
    ("a model of sound", auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES),
    ("a model of sound", auto.MODEL_FOR_CTC_MAPPING_NAMES),
    ("a model of sound", auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES),
    ("a model of time series", auto.MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES),
)
_DECODERS, _WITH_ENCODER = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "attention"}
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


def require_plain_decoder(config: PreTrainedConfig) -> None:
    """Raise UnsupportedModelError, naming the kind, for every other kind of model.

    Of a model of several parts the text half decides, where transformers loads that alone.
    """
    text = getattr(config, "text_config", None)
    half = text if isinstance(text, PreTrainedConfig) and _writes_text(text) else config
    if (kind := _other_task(half) or _other_kind(half)) is not None:
        raise UnsupportedModelError(f"{architecture_name(half)} is {kind}: {ONLY_PLAIN}")


def _other_task(config: PreTrainedConfig) -> str | None:
    """What a model is for, if not for writing text.

    What stands in transformers' list of decoders as well as in another (BERT, Whisper) is there as a part of a model.
    """
    task = next((task for task, kinds in _OTHER_TASKS if config.model_type in kinds), None)
    if not _writes_text(config):
        return task or "no language model, or a part of one that transformers does not load alone"
    if config.model_type in _WITH_ENCODER:
        return None if config.is_encoder_decoder else "the decoder of an encoder-decoder, without its encoder"
    return task


def _writes_text(config: PreTrainedConfig) -> bool:
    """Whether transformers lists the model type as one that writes text; a head of ours does."""
    listed = _WITH_ENCODER if config.is_encoder_decoder else _DECODERS
    return config.model_type in listed or isinstance(config, HeadConfig)


def _other_kind(config: PreTrainedConfig) -> str | None:
    """What the settings of a model that writes text say of its layers, if they are not plain."""
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    if strange := ", ".join(sorted(map(str, kinds - _ATTENTION_LAYERS))):
        return f"a model with layers of {strange}"
    for kind, settings, most in _SIGNS:
        for setting in settings:
            value = getattr(config, setting, None)
            if isinstance(value, int | float) and value > most:
                return f"{kind} ({setting}: {value})"
    if config.is_encoder_decoder and (experts := getattr(config, "num_experts", 0)):
        return f"a mixture of experts with an encoder (num_experts: {experts})"
    written = getattr(config, "decoder_vocab_size", None)
    if written is not None and written != config.vocab_size:
        return f"a model that writes with another vocabulary than it reads (decoder_vocab_size: {written})"
    if getattr(config, "is_causal", True) is False:
        return "an encoder, which sees what follows (is_causal: False)"
    return None
