"""GGUF files of tiny models as llama.cpp writes them, by the `gguf` package's writer and its table of names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ARCHITECTURES = {  # model type: architecture in GGUF
    "llama": "llama",
    "mistral": "llama",
    "smollm3": "smollm3",
    "granite": "granite",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmoe": "olmoe",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "granitemoe": "granitemoe",
    "gpt_oss": "gpt-oss",
}
INTERLEAVED = ("llama", "smollm3", "granite", "granitemoe")
WORDS = [
    "the quick brown fox",
    "jumps over 12 lazy dogs",
    "It's x =  12, isn't it?",
    "naïve größe",
    "你好 世界",
    "a\n\n b\t c",
]
SAMPLE_SIZE = 300


def byte_level_tokenizer(size: int) -> Tokenizer:
    """A byte-level BPE that was trained on a few words, cut as SmolLM's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(WORDS * 20, trainer)
    return made


def make_model(model_type: str, **settings: Any) -> PreTrainedModel:
    """A random model in float32."""
    config = AutoConfig.for_model(
        model_type,
        **{
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": SAMPLE_SIZE,
            "max_position_embeddings": 128,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": None,
        }
        | settings,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    tokenizer: Tokenizer,
    factors: np.ndarray[Any, Any] | None = None,
    experts: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    others: dict[str, np.ndarray[Any, Any] | None] | None = None,
    **changes: Any,
) -> Path:
    """The file that the converter makes; `changes` add keys, or with None leave some out; `factors` are of rotation.

    `experts` is the type of the experts' matrices; `others` are written instead of tensors, which None leaves out.
    """
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, changes.pop("general.architecture", arch))
    write = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for name, value in {**_keys(config, arch), **_tokenizer_keys(tokenizer, config.vocab_size), **changes}.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            write[type(value)](name, value)
    for name, tensor in (tensors_of(model, arch) | (others or {})).items():
        if tensor is not None and name.endswith("_exps.weight"):
            writer.add_tensor(name, gguf.quants.quantize(tensor, experts), raw_dtype=experts)
        elif tensor is not None:
            writer.add_tensor(name, tensor)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _keys(config: Any, arch: str) -> dict[str, Any]:
    rope = config.rope_parameters
    whole = rope.get("full_attention", rope)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    own: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(whole["rope_theta"]),
    }
    if arch in INTERLEAVED:
        own |= {"vocab_size": config.vocab_size, "rope.dimension_count": head}
    if arch in ("qwen3", "qwen3moe", "gpt-oss", "gemma2", "gemma3"):
        own |= {"attention.key_length": head, "attention.value_length": head}
    if (experts := getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)) is not None:
        own |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    if arch in ("qwen2moe", "qwen3moe"):
        own["expert_feed_forward_length"] = config.moe_intermediate_size
    if arch == "qwen2moe":
        own["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if arch == "gpt-oss":
        own["expert_feed_forward_length"] = config.intermediate_size
    if arch in ("granite", "granitemoe"):
        own |= {
            "attention.scale": config.attention_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        }
    if arch == "gemma2":
        own |= {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    if arch in ("gemma2", "gemma3", "gpt-oss"):
        own["attention.sliding_window"] = config.sliding_window
    if arch == "phi3":
        rotated = int(whole.get("partial_rotary_factor", 1.0) * config.hidden_size) // config.num_attention_heads
        own |= {
            "rope.dimension_count": rotated,
            "rope.scaling.original_context_length": whole.get(
                "original_max_position_embeddings", config.max_position_embeddings
            ),
            "attention.sliding_window": config.sliding_window or 0,
        }
        if whole["rope_type"] == "longrope":
            original = whole["original_max_position_embeddings"]
            scale = config.max_position_embeddings / original
            own["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    if whole["rope_type"] in ("linear", "yarn"):
        own |= {"rope.scaling.type": whole["rope_type"], "rope.scaling.factor": whole["factor"]}
    if whole["rope_type"] == "yarn":
        own["rope.scaling.original_context_length"] = whole["original_max_position_embeddings"]
    return {f"{arch}.{name}": value for name, value in own.items()}


def _tokenizer_keys(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    described = json.loads(tokenizer.to_str())
    ids = {number: token for token, number in tokenizer.get_vocab().items()}
    special = {token["id"] for token in described["added_tokens"]}
    tokens = [ids.get(number, f"[PAD{number}]") for number in range(size)]
    types = [3 if n in special else 1 if n in ids else 5 for n in range(size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in described["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def tensors_of(model: PreTrainedModel, arch: str) -> dict[str, np.ndarray[Any, Any]]:
    """The model's tensors under the names of the file, changed as its writer changes them."""
    config = model.config
    kind = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    tied = config.tie_word_embeddings
    written: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        if ".experts." in name:
            written |= experts_of(name, tensor.numpy(), arch)
            continue
        name = name.replace(".router.weight", ".router.layer.weight") if arch == "granitemoe" else name
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        own = f"{own}.weight" if name.endswith("sinks") else own
        assert own is not None, name
        values = tensor.numpy()
        if arch in INTERLEAVED and ".q_proj." in name:
            values = interleave(values, config.num_attention_heads)
        if arch in INTERLEAVED and ".k_proj." in name:
            values = interleave(values, config.num_key_value_heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        written[own] = np.ascontiguousarray(values)
    for length in ("long", "short"):  # LongRoPE's tables
        if (table := config.rope_parameters.get(f"{length}_factor")) is not None:
            written[f"rope_factors_{length}.weight"] = np.array(table, np.float32)
    return written


def experts_of(name: str, values: np.ndarray[Any, Any], arch: str) -> dict[str, np.ndarray[Any, Any]]:
    """A parameter of a layer's experts: gate and up are two tensors; gpt-oss has them transposed and in turn."""
    layer, leaf = name.split(".")[2], name.rpartition(".")[2]
    kind = "bias" if leaf.endswith("_bias") else "weight"
    if arch == "gpt-oss" and kind == "weight":
        values = values.swapaxes(1, 2)
    rows = values.shape[1]
    parts = {"ffn_down_exps": values}
    if leaf.startswith("gate_up"):
        half = (
            (slice(0, None, 2), slice(1, None, 2)) if arch == "gpt-oss" else (slice(rows // 2), slice(rows // 2, rows))
        )
        parts = {part: values[:, each] for part, each in zip(("ffn_gate_exps", "ffn_up_exps"), half, strict=True)}
    return {f"blk.{layer}.{part}.{kind}": np.ascontiguousarray(value) for part, value in parts.items()}


def interleave(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Row j * d/2 + i of each head becomes row 2 * i + j."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return byte_level_tokenizer(SAMPLE_SIZE - 7)


@pytest.fixture
def gguf_of(tmp_path: Path, small_tokenizer: Tokenizer) -> Callable[..., tuple[PreTrainedModel, Path]]:
    """A model of a type with these settings, and its file with these changes of keys."""

    def make(
        model_type: str, settings: dict[str, Any] | None = None, name: str = "model.gguf", **changes: Any
    ) -> tuple[PreTrainedModel, Path]:
        model = make_model(model_type, **(settings or {}))
        return model, write_gguf(model, tmp_path / name, small_tokenizer, **changes)

    return make
