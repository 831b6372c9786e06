"""Families of dense models: Llama (as which Mistral, SmolLM2 and TinyLlama are written) and its kin, Gemma, Phi.

Llama 3's scaling is a tensor of factors. Gemma's norms are stored plus one, and several of its settings are the
program's own, by the model's size. Phi has q, k and v in one matrix, gate and up in another, and factors of rotation
for short and long texts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.gguf.family import (
    ATTENTION,
    FEED_FORWARD,
    FREQUENCIES,
    HEAD_NORMS,
    LONG,
    NORMS,
    SHORT,
    Facts,
    GgufFamily,
    Settings,
    rotation,
)
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

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


GEMMA_NAMES = {
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
        **_gemma_settings(facts, sizes),
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
        **_gemma_settings(facts, sizes),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.real("final_logit_softcapping", 0.0) or None,
        "sliding_window": keys.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (layer + 1) % PATTERN else "full_attention" for layer in layers],
        "rope_parameters": {
            "full_attention": rotation(facts, 1000000.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _gemma_settings(facts: Facts, sizes: Settings) -> Settings:
    """What both have: the activation, and what a query is scaled by."""
    large = sizes["num_hidden_layers"] == LAYERS_OF_27B[facts.keys.arch]
    scaled_by = sizes["hidden_size"] // sizes["num_attention_heads"] if large else sizes["head_dim"]
    return {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scaled_by}


PHI3_NAMES = {
    **NORMS,
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


def phi3_settings(facts: Facts, sizes: Settings) -> Settings:
    """The settings of a Phi-3 model; a window of 0 means no window."""
    keys, longest = facts.keys, sizes["max_position_embeddings"]
    head = sizes["hidden_size"] // max(sizes["num_attention_heads"], 1)
    rotated = {"partial_rotary_factor": keys.count("rope.dimension_count", head) / head}
    return {
        **rotated,
        "hidden_act": "silu",
        "sliding_window": keys.count("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": keys.count("rope.scaling.original_context_length", longest),
        "rope_parameters": _phi3_rotation(facts, longest) | rotated,
        "pad_token_id": None,
    }


def _phi3_rotation(facts: Facts, longest: int) -> Settings:
    """Plain, or by the two tables of factors. Raises MxspecError for one without the other, and for another scale."""
    keys = facts.keys
    original = keys.count("rope.scaling.original_context_length", longest)
    if not facts.factors:
        return rotation(facts)
    if facts.factors.keys() != {LONG, SHORT}:
        raise CheckpointError(f"{keys.path}: has {' and '.join(sorted(facts.factors))}, expected {LONG} and {SHORT}")
    scale = longest / original
    expected = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    if not math.isclose(keys.real("rope.scaling.attn_factor", expected), expected, rel_tol=1e-5):
        raise UnsupportedModelError(
            f"{keys.path}: {keys.arch}.rope.scaling.attn_factor: got {keys.real('rope.scaling.attn_factor')}, expected "
            f"{expected:.7g}, that of LongRoPE"
        )
    return {
        "rope_type": "longrope",
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "original_max_position_embeddings": original,
        "long_factor": [float(str(value)) for value in facts.factors[LONG]],
        "short_factor": [float(str(value)) for value in facts.factors[SHORT]],
    }


DENSE = {
    "llama": GgufFamily(
        "llama", "LlamaForCausalLM", llama_settings, NAMES, INTERLEAVED, factors=frozenset({FREQUENCIES})
    ),
    "smollm3": GgufFamily("smollm3", "SmolLM3ForCausalLM", smollm3_settings, NAMES, INTERLEAVED),
    "granite": GgufFamily("granite", "GraniteForCausalLM", granite_settings, NAMES, INTERLEAVED, head_dim=False),
    "qwen2": GgufFamily("qwen2", "Qwen2ForCausalLM", qwen2_settings, NAMES),
    "qwen3": GgufFamily("qwen3", "Qwen3ForCausalLM", qwen3_settings, {**NAMES, **HEAD_NORMS}),
    "gemma2": GgufFamily("gemma2", "Gemma2ForCausalLM", gemma2_settings, GEMMA_NAMES, shifted=True),
    "gemma3": GgufFamily(
        "gemma3_text", "Gemma3ForCausalLM", gemma3_settings, {**GEMMA_NAMES, **HEAD_NORMS}, shifted=True
    ),
    "phi3": GgufFamily(
        "phi3", "Phi3ForCausalLM", phi3_settings, PHI3_NAMES, factors=frozenset({LONG, SHORT}), head_dim=False
    ),
}
