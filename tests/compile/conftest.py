"""Tiny random checkpoints of every architecture that is tested, made once a session; their graphs once a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.compile.graph.exported_graph import ExportedGraph, WeightSpec
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.tiles import pack_values
from tests.compile.outlined import exported

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 120,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attention_dropout": 0.0,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GPT2 = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 120,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
_WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA = {**_COMMON, **_WINDOW, "head_dim": 16, "query_pre_attn_scalar": 24}
_ONE_SIZE = {"head_dim": 16, "global_head_dim": 16, "hidden_size_per_layer_input": 0}  # of Gemma 4, in all layers
_ROPE = {"rope_theta": 10000.0, "factor": 16.0}
_LONGROPE = {  # every text of the tests is longer than the original 8 positions
    **_ROPE,
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 8,
}

_ONE = {**_COMMON, "num_hidden_layers": 1}  # for the architectures that need no second layer to be told apart

# No dimension is a multiple of a tile's 16 rows or 32 columns.
_RAGGED = {
    "hidden_size": 60,
    "intermediate_size": 90,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "vocab_size": 121,
}

_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}  # widths are multiples of 16
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 1}
_YARN = {**_ROPE, "rope_type": "yarn", "truncate": False, "original_max_position_embeddings": 32}

# name → (model type, configuration)
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_COMMON, "tie_word_embeddings": False}),
    "llama-tied": ("llama", {**_COMMON, "tie_word_embeddings": True, "vocab_size": 121}),
    "llama-rope3": ("llama", {**_ONE, "rope_parameters": _LLAMA3_ROPE}),
    "llama-ragged": ("llama", {**_ONE, **_RAGGED, "attention_bias": True, "mlp_bias": True}),
    "gpt2": ("gpt2", _GPT2),
    "gpt2-untied": ("gpt2", {**_GPT2, "n_layer": 1, "tie_word_embeddings": False}),
    "mistral": ("mistral", {**_ONE, "head_dim": 16, "sliding_window": 8}),
    "qwen2": ("qwen2", {**_ONE, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**_ONE, "head_dim": 16}),
    "gemma": ("gemma", {**_ONE, "head_dim": 16}),
    "gemma2": ("gemma2", {**_GEMMA, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0}),
    "gemma3": ("gemma3_text", _GEMMA),
    "gpt_neox": ("gpt_neox", {**_ONE, "rotary_pct": 0.5, "num_key_value_heads": 4}),
    "phi": ("phi", {**_ONE, "partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {**_ONE, "sliding_window": 8}),
    "opt": ("opt", {**_ONE, "ffn_dim": 96, "word_embed_proj_dim": 64, "num_key_value_heads": 4}),
    "olmo2": ("olmo2", _ONE),
    "granite": ("granite", {**_ONE, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}),
    "smollm3": ("smollm3", {**_COMMON, "no_rope_layers": [1, 0]}),
    "starcoder2": ("starcoder2", {**_ONE, "sliding_window": 8}),
    "codegen": ("codegen", {**_GPT2, "rotary_dim": 8, "n_ctx": 128}),
    "falcon": ("falcon", {**_ONE, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "bloom": ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 120}),
    "cohere": ("cohere", {**_ONE, "logit_scale": 0.5, "use_qk_norm": True}),
    "granite_swa": ("granite_swa", {**_COMMON, **_WINDOW}),
    "nemotron": ("nemotron", {**_ONE, "head_dim": 18}),
    "olmo": ("olmo", {**_ONE, "clip_qkv": 2.0}),
    "qwen3_moe": ("qwen3_moe", {**_ONE, **_EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True}),
    "gpt_oss": ("gpt_oss", {**_COMMON, **_WINDOW, "num_local_experts": 8, "head_dim": 16, "rope_parameters": _YARN}),
    "glm4_moe": (
        "glm4_moe",
        {**_COMMON, **_ROUTED, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True},
    ),
}

# Their graphs are made of the nodes of those above: a comparison with transformers is enough.
LIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-dynamic": ("llama", {**_ONE, "rope_parameters": {**_ROPE, "rope_type": "dynamic", "factor": 2.0}}),
    "phi3-longrope": ("phi3", {**_ONE, "original_max_position_embeddings": 8, "rope_parameters": _LONGROPE}),
    "gptj": ("gptj", {**_GPT2, "n_layer": 1, "rotary_dim": 8}),
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "vocab_size": 120,
            "max_position_embeddings": 128,
        },
    ),
    "falcon-one": ("falcon", {**_ONE, "multi_query": True, "bias": True}),
    "falcon-alibi": ("falcon", {**_ONE, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "mpt": ("mpt", {"d_model": 64, "n_layers": 1, "n_heads": 4, "max_seq_len": 128, "vocab_size": 120}),
    "cohere2": ("cohere2", {**_COMMON, **_WINDOW}),
    "cwm": ("cwm", {**_COMMON, **_WINDOW, "head_dim": 16}),
    "helium": ("helium", {**_ONE, "head_dim": 16}),
    "stablelm": ("stablelm", {**_ONE, "partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "glm": ("glm", {**_ONE, "head_dim": 16}),
    "glm4": ("glm4", {**_ONE, "head_dim": 16}),
    "exaone4": ("exaone4", {**_COMMON, **_WINDOW}),
    "ministral": ("ministral", {**_COMMON, **_WINDOW, "head_dim": 16}),
    "olmo3": ("olmo3", {**_COMMON, **_WINDOW}),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT2, "n_layer": 1}),
    "seed_oss": ("seed_oss", {**_ONE, "head_dim": 16}),
    "ernie4_5": ("ernie4_5", {**_ONE, "head_dim": 16}),
    "gemma4": ("gemma4_text", {**_COMMON, **_WINDOW, **_ONE_SIZE, "attention_k_eq_v": True}),
    "apertus": ("apertus", {**_ONE, "rope_parameters": _LLAMA3_ROPE}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {**_ONE, "head_dim": 16}),
    "mixtral": ("mixtral", {**_ONE, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "olmoe": ("olmoe", {**_ONE, **_EXPERTS}),
    "qwen2_moe": (
        "qwen2_moe",
        {**_ONE, **_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    ),
    "granitemoe": ("granitemoe", {**_ONE, "num_local_experts": 8, "num_experts_per_tok": 3}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {**_COMMON, "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1},
    ),
}


_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4}
_T5 |= {"vocab_size": 120, "decoder_start_token_id": 0}
_BART = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "vocab_size": 120}
_BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "max_position_embeddings": 128}
_MARIAN = {**_BART, "pad_token_id": 119, "decoder_start_token_id": 119, "scale_embedding": True}

# Encoder-decoders: name → (model type, configuration)
WITH_ENCODER: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", {**_T5, "num_decoder_layers": 2}),
    "mt5": ("mt5", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("bart", _BART),
    "marian": ("marian", _MARIAN),
    "m2m_100": ("m2m_100", _BART),
}


def make_model(name: str) -> PreTrainedModel:
    """A random model of that name in float32, every weight a float16 value, norms and biases away from 1 and 0."""
    model_type, settings = (TINY | LIGHT | WITH_ENCODER)[name]
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(sum(map(ord, name)))
    attention = "sdpa" if settings.get("alibi") else "eager"  # Falcon's eager attention adds its ALiBi twice
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: PreTrainedModel = kind.from_config(config, attn_implementation=attention, dtype=torch.float32)
    if name == "mt5":  # whose head is its own, as in the checkpoints of T5 1.1
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    with torch.no_grad():
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias).half())
        for parameter in model.parameters():
            if not parameter.requires_grad:  # sinusoids
                continue
            spread = 0.2 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn_like(parameter), alpha=spread)
            parameter.copy_(parameter.half().float())
    return model.eval()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel]]:
    """Call it with a name of TINY for the checkpoint directory (float16 safetensors, config) and the float32 model."""

    @cache
    def make(name: str) -> tuple[Path, PreTrainedModel]:
        model = make_model(name)
        path = tmp_path_factory.mktemp("checkpoints") / name
        copy.deepcopy(model).half().save_pretrained(path)  # a copy: half() would round the rotary buffers as well
        return path, model

    return make


@pytest.fixture(scope="session")
def tiny_export(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]],
) -> Callable[[str, str, str], ExportedGraph]:
    """Call it with a name of TINY, a weight format and a cache type for the exported graph: shared, to be read only."""

    @cache
    def export(name: str, weight_format: str, caches: str) -> ExportedGraph:
        path, _ = tiny_checkpoint(name)
        return exported(load_config(path), 96, caches, format=weight_format)

    return export


@pytest.fixture(scope="session", autouse=True)
def _compile_each_model_once(each_model_compiled_once: None) -> None:
    """Bundles of the same tiny configs are compiled over and over."""


@pytest.fixture(params=WITH_ENCODER)
def name_with_encoder(request: pytest.FixtureRequest) -> str:
    """Each name of WITH_ENCODER."""
    return str(request.param)


@pytest.fixture(params=TINY)
def tiny_name(request: pytest.FixtureRequest) -> str:
    """Each name of TINY."""
    return str(request.param)


@pytest.fixture(params=TINY | LIGHT)
def any_name(request: pytest.FixtureRequest) -> str:
    """Each name of TINY and of LIGHT."""
    return str(request.param)


def fill_weight(spec: WeightSpec, state: dict[str, torch.Tensor]) -> npt.NDArray[np.generic]:
    """The bytes that belong into the graph, packed from a model's parameters."""
    if spec.value is not None:
        return spec.value
    sources = [_tall(state[name].numpy(), spec.shape[-1]) for name in spec.sources]
    stacked = np.concatenate([source.T if spec.transpose else source for source in sources])
    assert stacked.shape == spec.shape, spec
    if spec.kind != "matmul":
        return stacked.astype(spec.stored_dtype)
    return pack_values(np.ascontiguousarray(stacked), spec.format).data


def _tall(parameter: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    """A parameter of several experts, [experts, rows, k] or [experts, k, rows], as a matrix [experts * rows, k]."""
    if parameter.ndim != 3:
        return parameter
    return (parameter if parameter.shape[2] == k else parameter.transpose(0, 2, 1)).reshape(-1, k)


@pytest.fixture(scope="session")
def written_graph(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]],
    tiny_export: Callable[[str, str, str], ExportedGraph],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str, str], tuple[Path, ModelEntry]]:
    """Call it as tiny_export for a folder with the graph, its weights inside, and the manifest's entry (entry.json)."""

    @cache
    def write(name: str, weight_format: str, caches: str) -> tuple[Path, ModelEntry]:
        exported = tiny_export(name, weight_format, caches)
        state = tiny_checkpoint(name)[1].state_dict()
        model = exported.model.clone()
        for spec in exported.weights:
            model.graph.initializers[spec.name].const_value = ir.tensor(fill_weight(spec, state), name=spec.name)
        folder = tmp_path_factory.mktemp(f"{name}-{weight_format}-{caches}")
        (folder / "graph.onnx").write_bytes(ir.serde.serialize_model(model).SerializeToString())
        sizes = ("architecture", "layers", "kv_heads", "head_size", "caches", "windows", "vocab_size", "context_length")
        entry = ModelEntry(
            graph="graph.onnx", weights="inside", format=weight_format, specializations=(1, 96), tensors=(),
            **{name: getattr(exported, name) for name in sizes},
        )  # fmt: skip
        (folder / "entry.json").write_text(entry.model_dump_json())
        return folder, entry

    return write
