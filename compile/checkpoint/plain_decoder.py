"""Check that a model is a plain decoder, whose layers have attention and a feed-forward; if not, name its kind.

An encoder-decoder counts as plain if both its parts are.
"""

from __future__ import annotations

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.architecture import architecture_name
from mxspec.formats.errors import UnsupportedModelError

# Settings by which transformers' configurations show their kind: a value above the number means that kind.
_SIGNS = (
    ("a decoder that wants another model's states", ("add_cross_attention",), 0),
    (
        "a mixture of experts",
        ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
        1,
    ),
    ("a mixture of experts", ("enable_moe_block",), 0),
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
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "attention"}


def require_plain_decoder(config: PreTrainedConfig) -> None:
    """Raise UnsupportedModelError, naming the kind, for every other kind of model."""
    kind = _other_kind(config)
    if kind is not None:
        raise UnsupportedModelError(f"{architecture_name(config)} is {kind}: only plain decoders can be compiled")


def _other_kind(config: PreTrainedConfig) -> str | None:
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    if strange := ", ".join(sorted(map(str, kinds - _ATTENTION_LAYERS))):
        return f"a {'hybrid' if kinds & _ATTENTION_LAYERS else 'state-space model'}, with layers of {strange}"
    for kind, settings, most in _SIGNS:
        for setting in settings:
            value = getattr(config, setting, None)
            if isinstance(value, int | float) and value > most:
                return f"{kind} ({setting}: {value})"
    written = getattr(config, "decoder_vocab_size", None)
    if written is not None and written != config.vocab_size:
        return f"a model that writes with another vocabulary than it reads (decoder_vocab_size: {written})"
    if getattr(config, "is_causal", True) is False:
        return "an encoder, which sees what follows (is_causal: False)"
    return None
