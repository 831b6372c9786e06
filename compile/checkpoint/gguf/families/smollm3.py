"""SmolLM3: a Llama in which every fourth layer does not rotate, which no key says."""

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


def smollm3_settings(facts: Facts) -> Settings:
    """Those of a SmolLM3."""
    require_no_factors(facts)
    settings = decoder_settings(facts, "smollm3", "SmolLM3ForCausalLM")
    layers = settings["num_hidden_layers"]
    return settings | {
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in facts.tensors,
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)],  # 1: rotates
        "use_sliding_window": False,
        "rope_parameters": rotation(facts),
        "pad_token_id": None,
    }


SMOLLM3 = Family(smollm3_settings, LLAMA_NAMES, INTERLEAVED)
