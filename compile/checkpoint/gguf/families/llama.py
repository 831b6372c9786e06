"""Llama, and what is written as Llama: Mistral, SmolLM2, TinyLlama. Llama 3's scaling is a tensor of factors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.gguf.families.family import (
    ATTENTION,
    LLAMA_NAMES,
    Facts,
    Family,
    Settings,
    decoder_settings,
    rotation,
)
from mxspec.formats.errors import UnsupportedModelError

INTERLEAVED = frozenset({"attn_q", "attn_k"})
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192  # of every Llama 3; files say the factors that come of them, not these


def llama_settings(facts: Facts) -> Settings:
    """Those of a Llama, biases where the file has them."""
    biased = {module for module in ATTENTION if f"blk.0.{module}.bias" in facts.tensors}
    settings = decoder_settings(facts, "llama", "LlamaForCausalLM") | {
        "hidden_act": "silu",
        "attention_bias": bool(biased),
        "mlp_bias": "blk.0.ffn_down.bias" in facts.tensors,
        "rope_parameters": rotation(facts),
    }
    if "rope_freqs.weight" in facts.factors:
        settings["rope_parameters"] = llama3_rotation(facts, settings["rope_parameters"])
    return settings


def llama3_rotation(facts: Facts, plain: Settings) -> Settings:
    """The parameters whose factors are those of the file. Raises UnsupportedModelError where none are."""
    found = facts.factors["rope_freqs.weight"]
    factor = float(found.max())
    expected = llama3_factors(len(found), plain["rope_theta"], factor)
    if plain["rope_type"] != "default" or not np.allclose(found, expected, rtol=1e-5, atol=0):
        raise UnsupportedModelError(
            f"{facts.keys.path}: rope_freqs.weight does not hold the factors of Llama 3's scaling by {factor:g} with "
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


LLAMA = Family(llama_settings, LLAMA_NAMES, INTERLEAVED)
