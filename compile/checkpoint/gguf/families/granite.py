"""Granite: a Llama with four factors of its own."""

from __future__ import annotations

from mxspec.compile.checkpoint.gguf.families.family import (
    LLAMA_NAMES,
    Facts,
    Family,
    Settings,
    decoder_settings,
    require_no_factors,
    rotation,
)
from mxspec.compile.checkpoint.gguf.families.llama import INTERLEAVED


def granite_settings(facts: Facts) -> Settings:
    """Those of a Granite; the writer leaves out a factor that is 0."""
    require_no_factors(facts)
    settings = decoder_settings(facts, "granite", "GraniteForCausalLM")
    del settings["head_dim"]  # always hidden_size / num_attention_heads
    return settings | {
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in facts.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in facts.tensors,
        "attention_multiplier": facts.keys.real("attention.scale", 1.0),
        "embedding_multiplier": facts.keys.real("embedding_scale", 1.0),
        "residual_multiplier": facts.keys.real("residual_scale", 1.0),
        "logits_scaling": facts.keys.real("logit_scale", 1.0),
        "rope_parameters": rotation(facts),
    }


GRANITE = Family(granite_settings, LLAMA_NAMES, INTERLEAVED)
