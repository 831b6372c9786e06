"""Llama, and what is written as Llama: Mistral, SmolLM2, TinyLlama; its kin SmolLM3, Granite, Qwen 2 and 3.

Llama 3's scaling is a tensor of factors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.gguf.families.family import (
    ATTENTION,
    FEED_FORWARD,
    FREQUENCIES,
    HEAD_NORMS,
    NORMS,
    Facts,
    Family,
    Settings,
    rotation,
)
from mxspec.formats.errors import UnsupportedModelError

NAMES = {**NORMS, **ATTENTION, **FEED_FORWARD}
INTERLEAVED = frozenset({"attn_q", "attn_k"})
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192  # of every Llama 3; files say the factors that come of them, not these


def llama_settings(facts: Facts, sizes: Settings) -> Settings:
    """Biases where the file has them."""
    rotary = rotation(facts)
    return {
        "hidden_act": "silu",
        "attention_bias": facts.biased(*ATTENTION),
        "mlp_bias": facts.biased("ffn_down"),
        "rope_parameters": llama3_rotation(facts, rotary) if FREQUENCIES in facts.factors else rotary,
    }


def smollm3_settings(facts: Facts, sizes: Settings) -> Settings:
    """Every fourth layer does not rotate, which no key says."""
    return {
        "hidden_act": "silu",
        "attention_bias": facts.biased("attn_q"),
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(sizes["num_hidden_layers"])],  # 1: rotates
        "use_sliding_window": False,
        "rope_parameters": rotation(facts),
        "pad_token_id": None,
    }


def granite_settings(facts: Facts, sizes: Settings) -> Settings:
    """Four factors; the writer leaves out one that is 0."""
    return {
        "hidden_act": "silu",
        "attention_bias": facts.biased("attn_q"),
        "mlp_bias": facts.biased("ffn_down"),
        "attention_multiplier": facts.keys.real("attention.scale", 1.0),
        "embedding_multiplier": facts.keys.real("embedding_scale", 1.0),
        "residual_multiplier": facts.keys.real("residual_scale", 1.0),
        "logits_scaling": facts.keys.real("logit_scale", 1.0),
        "rope_parameters": rotation(facts),
    }


def qwen2_settings(facts: Facts, sizes: Settings) -> Settings:
    """No key says that q, k and v have biases: they always do."""
    rotary = rotation(facts, 1000000.0)
    return {"hidden_act": "silu", "use_sliding_window": False, "rope_parameters": rotary}


def qwen3_settings(facts: Facts, sizes: Settings) -> Settings:
    """Biases where the file has them; heads have norms."""
    return qwen2_settings(facts, sizes) | {"attention_bias": facts.biased("attn_q")}


def llama3_rotation(facts: Facts, plain: Settings) -> Settings:
    """The parameters whose factors are those of the file. Raises UnsupportedModelError where none are."""
    found = facts.factors[FREQUENCIES]
    factor = float(found.max())
    expected = llama3_factors(len(found), plain["rope_theta"], factor)
    if plain["rope_type"] != "default" or not np.allclose(found, expected, rtol=1e-5, atol=0):
        raise UnsupportedModelError(
            f"{facts.keys.path}: {FREQUENCIES} does not hold the factors of Llama 3's scaling by {factor:g} with "
            f"frequency factors {LOW:g} and {HIGH:g} and an original context of {ORIGINAL}; others are not supported"
        )
    return plain | {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL,
    }


def llama3_factors(pairs: int, theta: float, factor: float) -> NDArray[np.float64]:
    """What each of a head's frequencies is divided by (Llama 3.1: the high ones stay, the low ones by `factor`)."""
    wavelengths = 2 * math.pi * theta ** (np.arange(pairs) / pairs)
    smooth = np.clip((ORIGINAL / wavelengths - LOW) / (HIGH - LOW), 0, 1)
    factors: NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    return factors


LLAMA = Family("llama", "LlamaForCausalLM", llama_settings, NAMES, INTERLEAVED, factors=frozenset({FREQUENCIES}))
SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", smollm3_settings, NAMES, INTERLEAVED)
GRANITE = Family("granite", "GraniteForCausalLM", granite_settings, NAMES, INTERLEAVED, head_dim=False)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", qwen2_settings, NAMES)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", qwen3_settings, {**NAMES, **HEAD_NORMS})
