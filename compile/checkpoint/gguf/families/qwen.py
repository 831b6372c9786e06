"""Qwen 2 and 3: rows as in the checkpoint; Qwen 2 has biases, Qwen 3 norms of its heads."""

from __future__ import annotations

from mxspec.compile.checkpoint.gguf.families.family import (
    HEAD_NORMS,
    LLAMA_NAMES,
    Facts,
    Family,
    Settings,
    decoder_settings,
    require_no_factors,
    rotation,
)


def qwen2_settings(facts: Facts) -> Settings:
    """Those of a Qwen 2."""
    return _settings(facts, "qwen2", "Qwen2ForCausalLM")


def qwen3_settings(facts: Facts) -> Settings:
    """Those of a Qwen 3."""
    biased = "blk.0.attn_q.bias" in facts.tensors
    return _settings(facts, "qwen3", "Qwen3ForCausalLM") | {"attention_bias": biased}


def _settings(facts: Facts, model_type: str, architecture: str) -> Settings:
    require_no_factors(facts)
    return decoder_settings(facts, model_type, architecture) | {
        "hidden_act": "silu",
        "use_sliding_window": False,
        "rope_parameters": rotation(facts, 1000000.0),
    }


QWEN2 = Family(qwen2_settings, LLAMA_NAMES)
QWEN3 = Family(qwen3_settings, {**LLAMA_NAMES, **HEAD_NORMS})
