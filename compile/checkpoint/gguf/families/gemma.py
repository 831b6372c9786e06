"""Gemma 2 and 3: norms are stored plus one, and several settings are the program's own, by the model's size."""

from __future__ import annotations

from mxspec.compile.checkpoint.gguf.families.family import (
    ATTENTION,
    FEED_FORWARD,
    HEAD_NORMS,
    Facts,
    Family,
    Settings,
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


def gemma2_settings(facts: Facts, sizes: Settings) -> Settings:
    """Those of a Gemma 2."""
    keys = facts.keys
    return {
        **_shared(facts, sizes),
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
        "sliding_window": keys.count("attention.sliding_window", 4096),
        "rope_parameters": rotation(facts),
    }


def gemma3_settings(facts: Facts, sizes: Settings) -> Settings:
    """Those of a Gemma 3's language model."""
    keys = facts.keys
    keys.require("attention.sliding_window_pattern", PATTERN)
    local = keys.real("rope.freq_base_swa", LOCAL_THETA)
    layers = range(sizes["num_hidden_layers"])
    return {
        **_shared(facts, sizes),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.real("final_logit_softcapping", 0.0) or None,
        "sliding_window": keys.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (layer + 1) % PATTERN else "full_attention" for layer in layers],
        "rope_parameters": {
            "full_attention": rotation(facts, 1000000.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _shared(facts: Facts, sizes: Settings) -> Settings:
    """What both have: the activation, and what a query is scaled by."""
    large = sizes["num_hidden_layers"] == LAYERS_OF_27B[facts.keys.arch]
    scaled_by = sizes["hidden_size"] // sizes["num_attention_heads"] if large else sizes["head_dim"]
    return {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scaled_by}


GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", gemma2_settings, NAMES, shifted=True)
GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", gemma3_settings, {**NAMES, **HEAD_NORMS}, shifted=True)
