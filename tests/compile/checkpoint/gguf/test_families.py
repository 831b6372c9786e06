"""Every family: the tensors and the configuration of the checkpoint that a file was made from, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.gguf.dense_families import llama3_factors
from mxspec.compile.checkpoint.names import resolve_names
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

Made = Callable[..., tuple[PreTrainedModel, Path]]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0 + 0.25 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "tie_word_embeddings": True}
SEVEN = {"num_hidden_layers": 7}  # more than Gemma 3's pattern

EXPERTS, LOCAL = ({name: 8, "num_experts_per_tok": 2} for name in ("num_experts", "num_local_experts"))
GPT_OSS = {"head_dim": 16, "sliding_window": 8, "rope_parameters": {**YARN, "truncate": False}}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama tied, biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama of another head size": ("llama", {"head_dim": 32}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 2.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}),
    "granite": ("granite", {"logits_scaling": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", {**GEMMA, **SEVEN}),
    "phi3": ("phi3", {"sliding_window": 64}),
    "phi3 longrope": (
        "phi3",
        {"sliding_window": None, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
    ),
    "olmoe": ("olmoe", EXPERTS),
    "qwen2moe": ("qwen2_moe", {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 32, "head_dim": 32, "norm_topk_prob": True}),
    "mixtral": ("mixtral", {**LOCAL, "head_dim": 32}),
    "granitemoe": ("granitemoe", {**LOCAL, "logits_scaling": 3.0, "attention_multiplier": 0.1}),
    "gpt-oss": ("gpt_oss", {**LOCAL, **GPT_OSS}),
    "phi3 without a window, rotated in part": ("phi3", {"sliding_window": None, "partial_rotary_factor": 0.5}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_is_the_checkpoint_that_it_was_made_from(gguf_of: Made, name: str) -> None:
    model, path = gguf_of(*FAMILIES[name])
    with Checkpoint(path) as checkpoint:
        found = resolve_names(checkpoint.named, checkpoint.tensors, model.state_dict())
        experts = expert_matrices(checkpoint.named)
        for parameter, values in model.state_dict().items():
            tensor = checkpoint.tensors[found.tensor_of[parameter]]
            read = tensor.read_rows(0, tensor.shape[0])
            if parameter in experts:
                read = experts[parameter].as_parameter(read)
            expected = values.numpy()
            if checkpoint.config.model_type.startswith("gemma") and parameter.endswith("norm.weight"):
                expected = expected + np.float32(1) - np.float32(1)  # a shift may cost a bit, there and back
            assert np.array_equal(read, expected), parameter
        assert found.ignored == ()
        logits_equal(model, checkpoint)


def logits_equal(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """A model of the file's configuration with the first one's weights computes the very same."""
    made = AutoModelForCausalLM.from_config(checkpoint.config).float().eval()  # of Mistral a Llama, which it is
    made.load_state_dict(model.state_dict())
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        assert torch.equal(made(ids).logits, model.eval()(ids).logits)


def test_rows_are_read_in_any_pieces(gguf_of: Made) -> None:
    _, path = gguf_of("llama")
    with Checkpoint(path) as checkpoint:
        tensor = checkpoint.tensors["model.layers.0.self_attn.k_proj.weight"]
        whole = tensor.read_rows(0, 32)
        for begin, end in ((0, 1), (3, 5), (7, 29), (15, 17), (31, 32)):
            assert np.array_equal(tensor.read_rows(begin, end), whole[begin:end])


def test_llama_3_factors_become_its_scaling(gguf_of: Made) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    settings = {"rope_parameters": scaling, "max_position_embeddings": 131072, "head_dim": 64}
    model, path = gguf_of("llama", settings, factors=llama3_factors(32, 500000.0, 8.0).astype(np.float32))
    with Checkpoint(path) as checkpoint:
        assert {name: checkpoint.config.rope_parameters[name] for name in scaling} == scaling
        logits_equal(model, checkpoint)


def test_other_factors_are_refused(gguf_of: Made) -> None:
    factors = llama3_factors(8, 10000.0, 8.0).astype(np.float32)
    factors[3] *= 1.01
    _, path = gguf_of("llama", factors=factors)
    with pytest.raises(UnsupportedModelError, match="does not hold the factors of Llama 3's scaling"):
        Checkpoint(path)


def test_factors_of_another_architecture_are_refused(gguf_of: Made) -> None:
    _, path = gguf_of("llama", {"rope_parameters": LONGROPE})
    with pytest.raises(UnsupportedModelError, match=r"'rope_factors_long.weight' is not one of architecture 'llama'"):
        Checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"llama.expert_count": 4}, CheckpointError, "key llama.expert_used_count is missing"),
        ({"llama.expert_group_count": 4}, UnsupportedModelError, "a mixture of experts"),
        ({"llama.attention.clamp_kqv": 8.0}, UnsupportedModelError, "attention.clamp_kqv is not known"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModelError, "expected none, linear or yarn"),
        ({"llama.attention.causal": False}, UnsupportedModelError, "attention.causal: got False, expected True"),
        ({"llama.attention.causal": [1, 2]}, UnsupportedModelError, "attention.causal: got"),
        ({"split.count": "two"}, CheckpointError, "split.count: got 'two', expected a whole number"),
        ({"split.tensors.count": 1}, CheckpointError, "its shards hold 21 tensors, expected 1"),
        ({"llama.block_count": None}, CheckpointError, "key llama.block_count is missing"),
        ({"llama.block_count": 1}, UnsupportedModelError, "'blk.1.* does not belong to a llama with 1 layers"),
        ({"llama.block_count": "two"}, CheckpointError, "expected a whole number"),
        ({"llama.attention.head_count": 5}, CheckpointError, "heads"),
        ({"general.architecture": "mamba"}, UnsupportedModelError, "got 'mamba'; supported in GGUF files are llama"),
        ({"tokenizer.ggml.pre": "default"}, UnsupportedModelError, "expected one of gpt-2, smollm"),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModelError, "expected gpt2"),
        (
            {"tokenizer.ggml.precompiled_charsmap": "x"},
            UnsupportedModelError,
            "precompiled_charsmap: got 'x', which is not",
        ),
        ({"tokenizer.ggml.tokens": None}, CheckpointError, "without a vocabulary"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, CheckpointError, "token_type: expected a type for each of 2 tokens"),
        ({"tokenizer.ggml.bos_token_id": 1000}, CheckpointError, "expected 0 to 299"),
        ({"tokenizer.ggml.merges": ["ab"]}, CheckpointError, "expected pairs of tokens"),
        ({"tokenizer.ggml.merges": [1, 2]}, CheckpointError, "expected pairs of tokens"),
        ({"tokenizer.ggml.add_eos_token": True}, UnsupportedModelError, "add_eos_token: got true"),
    ],
)
def test_unknown_settings_are_refused_by_name(
    gguf_of: Made, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    _, path = gguf_of("llama", **changes)
    with pytest.raises(error, match=message):
        Checkpoint(path).tokenizer  # noqa: B018
