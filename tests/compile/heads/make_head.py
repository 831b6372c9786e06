"""Tiny EAGLE-3 heads in both published forms, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.compile.heads.plain_head import IDS

ROWS = 48
TARGET_LOGITS = 272  # of save_checkpoint(..., logits=272)


def save_head(
    folder: Path,
    *,
    form: str = "plain",
    ids: list[int] | None = None,
    width: int = 64,
    target_width: int = 64,
    rows: int = ROWS,
    own_embedding: bool = False,
    bias: bool = False,
    states: int = 3,
    layer_type: str = "llama",
    **settings: Any,
) -> Path:
    """A head whose ids are in `eagle_config` for the form "nested", beside it for "plain", and of "speculators"."""
    layer: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "vocab_size": TARGET_LOGITS,
        "max_position_embeddings": 96,
        "rms_norm_eps": 1e-4,
        "hidden_act": "silu",
        "rope_theta": 5000.0,
        "attention_bias": bias,
        "tie_word_embeddings": False,
        "model_type": layer_type,
    }
    top: dict[str, Any] = {"draft_vocab_size": rows, **settings}
    if target_width != width:
        top["target_hidden_size"] = target_width
    if form == "speculators":
        proposal = {"algorithm": "eagle3", "proposal_methods": [], "default_proposal_method": "greedy"}
        top |= {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
        config = top | {"transformer_layer_config": layer, "speculators_config": proposal}
    else:
        config = layer | top | {"architectures": ["LlamaForCausalLMEagle3"]}
    if ids is not None:
        config |= {"eagle_config": {IDS: ids}} if form == "nested" else {IDS: ids}
    tensors = _tensors(config, layer, rows=rows, states=states, target_width=target_width, own_embedding=own_embedding)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _tensors(
    config: dict[str, Any], layer: dict[str, Any], *, rows: int, states: int, target_width: int, own_embedding: bool
) -> dict[str, Tensor]:
    """Random ones, by the names of the form that the config is in."""
    generator, width = torch.Generator().manual_seed(11), layer["hidden_size"]

    def random(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return (values * 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.2 * values).half()

    tensors = {"fc.weight": random(width, states * target_width), "norm.weight": random(width)}
    tensors["lm_head.weight"] = random(rows, width)
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = random(states * target_width)
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": random(target_width) for i in range(states)}
    if own_embedding:
        tensors["embed_tokens.weight"] = random(TARGET_LOGITS, width)
    if rows < TARGET_LOGITS:
        kept = torch.randperm(256, generator=generator)[:rows].sort().values
        tensors["d2t"] = kept - torch.arange(rows)
        tensors["t2d"] = torch.zeros(TARGET_LOGITS, dtype=torch.bool).scatter(0, kept, value=True)
    name = "layers.0" if "speculators_config" in config else "midlayer"
    shapes = {
        "self_attn.q_proj": (64, 2 * width),
        "self_attn.k_proj": (32, 2 * width),
        "self_attn.v_proj": (32, 2 * width),
        "self_attn.o_proj": (width, 64),
        "mlp.gate_proj": (96, width),
        "mlp.up_proj": (96, width),
        "mlp.down_proj": (width, 96),
        **dict.fromkeys(("input_layernorm", "hidden_norm", "post_attention_layernorm"), (width,)),
    }
    if layer["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm": (16,), "self_attn.k_norm": (16,)}
    for part, shape in shapes.items():
        tensors[f"{name}.{part}.weight"] = random(*shape)
        if layer["attention_bias"] and part.startswith("self_attn") and len(shape) > 1:
            tensors[f"{name}.{part}.bias"] = random(shape[0])
    return tensors
