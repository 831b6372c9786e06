"""Check that a model is a plain decoder, whose layers have attention and a feed-forward; if not, name its kind.

An encoder-decoder counts as plain if both its parts are.
"""

from __future__ import annotations

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto

from mxspec.compile.checkpoint.settings.architecture import architecture_name
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
