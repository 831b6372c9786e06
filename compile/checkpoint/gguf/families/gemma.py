"""Gemma 2 and 3: norms are stored plus one, and several settings are the program's own, by the model's size."""

from __future__ import annotations

from mxspec.compile.checkpoint.gguf.families.family import (
    ATTENTION,
    FEED_FORWARD,
    HEAD_NORMS,
    Facts,
    Family,
    Settings,
    decoder_settings,
    require_no_factors,
    rotation,
)

NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    **ATTENTION,
    **FEED_FORWARD,
}
PATTERN = 6  # of Gemma 3's layers, one in so many sees the whole text
LOCAL_THETA = 10000.0  # of the others
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}  # whose queries are scaled by another size than the head's


def gemma2_settings(facts: Facts) -> Settings:
    """Those of a Gemma 2."""
    keys = facts.keys
    return _settings(facts, "gemma2", "Gemma2ForCausalLM") | {
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
        "sliding_window": keys.count("attention.sliding_window", 4096),
        "rope_parameters": rotation(facts),
    }


def gemma3_settings(facts: Facts) -> Settings:
    """Those of a Gemma 3's language model."""
    keys = facts.keys
    settings = _settings(facts, "gemma3_text", "Gemma3ForCausalLM")
    keys.require("attention.sliding_window_pattern", PATTERN)
    local = keys.real("rope.freq_base_swa", LOCAL_THETA)
    softcap = keys.real("final_logit_softcapping", 0.0)
    layers = range(settings["num_hidden_layers"])
    return settings | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": softcap or None,
        "sliding_window": keys.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (layer + 1) % PATTERN else "full_attention" for layer in layers],
        "rope_parameters": {
            "full_attention": rotation(facts, 1000000.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _settings(facts: Facts, model_type: str, architecture: str) -> Settings:
    require_no_factors(facts)
    settings = decoder_settings(facts, model_type, architecture)
    large = settings["num_hidden_layers"] == LAYERS_OF_27B[facts.keys.arch]
    scaled_by = settings["hidden_size"] // settings["num_attention_heads"] if large else settings["head_dim"]
    return settings | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scaled_by}


GEMMA2 = Family(gemma2_settings, NAMES, shifted=True)
GEMMA3 = Family(gemma3_settings, {**NAMES, **HEAD_NORMS}, shifted=True)
