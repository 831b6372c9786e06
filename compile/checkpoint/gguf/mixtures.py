"""Mixtures of experts: OLMoE, Qwen 2 and 3, Mixtral (which is written as Llama), Granite, gpt-oss.

No key says whether the weights of the chosen experts are made to add up to one: the program's own value for each
architecture does.
"""

from __future__ import annotations

from mxspec.compile.checkpoint.gguf.dense_families import (
    INTERLEAVED,
    granite_settings,
    llama_settings,
    qwen2_settings,
    qwen3_settings,
)
from mxspec.compile.checkpoint.gguf.family import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    NORMS,
    Facts,
    GgufFamily,
    Settings,
    rotation,
)
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

NAMES = {**NORMS, **ATTENTION, "ffn_gate_inp": "mlp.gate", **dict.fromkeys(EXPERTS, "mlp.experts")}
SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
GRANITE_NAMES = {
    **NORMS,
    **ATTENTION,
    "ffn_gate_inp": "block_sparse_moe.router",
    **dict.fromkeys(EXPERTS, "block_sparse_moe.experts"),
}
GPT_OSS_NAMES = {
    **ATTENTION,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
    **dict.fromkeys(EXPERTS, "mlp.experts"),
}
FIRST_SOFTMAX, LAST_SOFTMAX = 1, 3  # gating functions: over all experts, or over the chosen ones


def olmoe_settings(facts: Facts, sizes: Settings) -> Settings:
    """The chosen experts' weights stay as they are."""
    facts.keys.require("expert_feed_forward_length", sizes["intermediate_size"])
    counts = _counts(facts, "num_experts", norm=False)
    return {**counts, "hidden_act": "silu", "norm_topk_prob": False, "rope_parameters": rotation(facts)}


def qwen2_moe_settings(facts: Facts, sizes: Settings) -> Settings:
    """A shared expert beside those that are chosen."""
    return {
        **qwen2_settings(facts, sizes),
        **_counts(facts, "num_experts", norm=False),
        "norm_topk_prob": False,
        "moe_intermediate_size": facts.keys.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": facts.keys.count("expert_shared_feed_forward_length"),
    }


def qwen3_moe_settings(facts: Facts, sizes: Settings) -> Settings:
    """The chosen experts' weights add up to one."""
    return {
        **qwen3_settings(facts, sizes),
        **_counts(facts, "num_experts", norm=True),
        "norm_topk_prob": True,
        "moe_intermediate_size": facts.keys.count("expert_feed_forward_length"),
    }


def mixtral_settings(facts: Facts, sizes: Settings) -> Settings:
    """A Llama with experts and without biases."""
    settings = llama_settings(facts, sizes)
    if settings.pop("attention_bias") or settings.pop("mlp_bias"):
        raise UnsupportedModelError(f"{facts.keys.path}: biases in a Llama with experts are not supported")
    return {**settings, **_counts(facts, "num_local_experts", norm=True), "sliding_window": None}


def granite_moe_settings(facts: Facts, sizes: Settings) -> Settings:
    """Granite's factors, and experts."""
    settings = granite_settings(facts, sizes)
    del settings["mlp_bias"]
    return {**settings, **_counts(facts, "num_local_experts", norm=True)}


def gpt_oss_settings(facts: Facts, sizes: Settings) -> Settings:
    """Every other layer has a window, the first one too; YaRN's bounds are not rounded, which no key says."""
    keys = facts.keys
    keys.require("expert_feed_forward_length", sizes["intermediate_size"])
    keys.require("attention.sliding_window_pattern", 2)
    layers = range(sizes["num_hidden_layers"])
    rotary = rotation(facts, 150000.0)
    return {
        **_counts(facts, "num_local_experts", norm=False, gating=LAST_SOFTMAX),
        "hidden_act": "silu",
        "attention_bias": True,
        "sliding_window": keys.count("attention.sliding_window"),
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in layers],
        "rope_parameters": rotary | ({"truncate": False} if rotary["rope_type"] == "yarn" else {}),
    }


def _counts(facts: Facts, counted: str, *, norm: bool, gating: int = FIRST_SOFTMAX) -> Settings:
    """The number of experts, as the setting `counted`, and of those that a token chooses."""
    keys = facts.keys
    experts, chosen = keys.count("expert_count"), keys.count("expert_used_count")
    if not 1 <= chosen <= experts:
        raise CheckpointError(
            f"{keys.path}: {keys.arch}.expert_used_count: got {chosen}, expected 1 to {experts}, the number of experts"
        )
    keys.require("expert_gating_func", gating)
    keys.require("expert_weights_norm", norm)
    keys.require("expert_weights_scale", 1.0)
    return {counted: experts, "num_experts_per_tok": chosen}


LLAMAS_WITH_EXPERTS = GgufFamily(
    "mixtral", "MixtralForCausalLM", mixtral_settings, NAMES, INTERLEAVED, counted="num_local_experts"
)
MIXTURES = {
    "olmoe": GgufFamily(
        "olmoe", "OlmoeForCausalLM", olmoe_settings, {**NAMES, **HEAD_NORMS}, head_dim=False, counted="num_experts"
    ),
    "qwen2moe": GgufFamily(
        "qwen2_moe", "Qwen2MoeForCausalLM", qwen2_moe_settings, {**NAMES, **SHARED}, counted="num_experts"
    ),
    "qwen3moe": GgufFamily(
        "qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe_settings, {**NAMES, **HEAD_NORMS}, counted="num_experts"
    ),
    "granitemoe": GgufFamily(
        *("granitemoe", "GraniteMoeForCausalLM", granite_moe_settings, GRANITE_NAMES, INTERLEAVED),
        head_dim=False,
        counted="num_local_experts",
    ),
    "gpt-oss": GgufFamily(
        *("gpt_oss", "GptOssForCausalLM", gpt_oss_settings, GPT_OSS_NAMES),
        counted="num_local_experts",
        alternating=True,
        whole={"attn_sinks.weight": "self_attn.sinks"},
    ),
}
