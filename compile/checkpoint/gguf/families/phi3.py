"""Phi-3 and Phi-4: q, k and v in one matrix, gate and up in another; factors of rotation for short and long texts."""

from __future__ import annotations

import math

from mxspec.compile.checkpoint.gguf.families.family import LONG, NORMS, SHORT, Facts, Family, Settings, rotation
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

NAMES = {
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
        "rope_parameters": _rotation(facts, longest) | rotated,
        "pad_token_id": None,
    }


def _rotation(facts: Facts, longest: int) -> Settings:
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


PHI3 = Family("phi3", "Phi3ForCausalLM", phi3_settings, NAMES, factors=frozenset({LONG, SHORT}), head_dim=False)
