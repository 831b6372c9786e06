"""Tiny checkpoints with MTP layers, by the published names of both families, with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.conftest import BOS, END, EOS, VOCAB, make_byte_tokenizer

LOGITS = VOCAB + 8
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "vocab_size": LOGITS,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-4,
    "rope_theta": 5000.0,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": [EOS, END],
    "num_nextn_predict_layers": 1,
}
_MIMO = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "use_sliding_window": False}
_GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
}
FAMILIES: dict[str, dict[str, Any]] = {"mimo": _SIZES | _MIMO, "glm4_moe": _SIZES | _GLM}


def save_mtp(folder: Path, family: str, *, layers: int = 1, own_tables: bool = False, **settings: Any) -> Path:
    """A target with so many MTP layers; `own_tables` gives GLM's an embedding and an output matrix of their own."""
    config = FAMILIES[family] | {"num_nextn_predict_layers": layers} | settings
    folder.mkdir(parents=True)
    shapes = _target(config) | _mtp(config, layers, own_tables=own_tables)
    tensors = {name: _random(name, shape) for name, shape in shapes.items()}
    tensors["lm_head.weight"][VOCAB:] *= 30  # too likely: they must be masked
    tensors["lm_head.weight"][[BOS, EOS, END]] = 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    make_byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def _random(name: str, shape: tuple[int, ...]) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, name)) + len(name)))
    if name.endswith(("bias", "e_score_correction_bias")):
        return (0.2 * values).half()
    return (values * 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.2 * values).half()


def _target(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, rows = config["hidden_size"], config["vocab_size"]
    tables = {
        "model.embed_tokens.weight": (rows, width),
        "lm_head.weight": (rows, width),
        "model.norm.weight": (width,),
    }
    found: dict[str, tuple[int, ...]] = dict(tables)
    for layer in range(config["num_hidden_layers"]):
        mixed = config["model_type"] == "glm4_moe" and layer >= config["first_k_dense_replace"]
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer(config, mixed=mixed).items()}
    return found


def _mtp(config: Mapping[str, Any], layers: int, *, own_tables: bool) -> dict[str, tuple[int, ...]]:
    width, rows, mixed = config["hidden_size"], config["vocab_size"], config["model_type"] == "glm4_moe"
    parts = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
    if not mixed:
        parts = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
    *norms, projection = parts
    shapes = {f"{norm}.weight": (width,) for norm in norms} | {f"{projection}.weight": (width, 2 * width)}
    if own_tables:
        shapes |= dict.fromkeys(("embed_tokens.weight", "shared_head.head.weight"), (rows, width))
    shapes |= _layer(config, mixed=mixed)
    prefix, first = ("model.layers.", config["num_hidden_layers"]) if mixed else ("model.mtp_layers.", 0)
    return {f"{prefix}{first + n}.{name}": shape for n in range(layers) for name, shape in shapes.items()}


def _layer(config: Mapping[str, Any], *, mixed: bool) -> dict[str, tuple[int, ...]]:
    """A decoder layer's tensors."""
    width, size = config["hidden_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"] * size} | dict.fromkeys("kv", config["num_key_value_heads"] * size)
    shapes: dict[str, tuple[int, ...]] = {"self_attn.o_proj.weight": (width, rows["q"])}
    for name, count in rows.items():
        shapes |= {f"self_attn.{name}_proj.weight": (count, width), f"self_attn.{name}_proj.bias": (count,)}
    if config.get("use_qk_norm"):
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    shapes |= dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), (width,))
    if not mixed:
        return shapes | _gated("mlp", width, config["intermediate_size"])
    narrow, experts = config["moe_intermediate_size"], config["n_routed_experts"]
    shapes |= {"mlp.gate.weight": (experts, width), "mlp.gate.e_score_correction_bias": (experts,)}
    shapes |= _gated("mlp.shared_experts", width, narrow * config["n_shared_experts"])
    for expert in range(experts):
        shapes |= _gated(f"mlp.experts.{expert}", width, narrow)
    return shapes


def _gated(name: str, width: int, wide: int) -> dict[str, tuple[int, ...]]:
    sides = dict.fromkeys(("gate", "up"), (wide, width)) | {"down": (width, wide)}
    return {f"{name}.{side}_proj.weight": shape for side, shape in sides.items()}
