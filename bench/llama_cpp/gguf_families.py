"""Tiny models of every family, converted by llama.cpp's own converter, and read back as checkpoints.

    python -m bench gguf-families build/llama_cpp

The folder holds llama.cpp's source, or gets it from the package index. Every tensor is compared bit for bit with the
one that transformers saved. The logits of both models and the ids of 1,000 texts are compared, too.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from bench.llama_cpp.build import source_of
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.names import resolve_names
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command

CONVERT = Path(__file__).parent / "convert.py"
VOCABULARY, TEXTS = 300, 1000
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "tie_word_embeddings": True}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0 + 0.25 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
EXPERTS, LOCAL = ({name: 8, "num_experts_per_tok": 2} for name in ("num_experts", "num_local_experts"))
WIDTHS = {"moe_intermediate_size": 32}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 131072, "head_dim": 64}),
    "mistral": ("mistral", {"sliding_window": None}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}),
    "granite": ("granite", {"logits_scaling": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", {**GEMMA, "num_hidden_layers": 7}),
    "olmoe": ("olmoe", EXPERTS),
    "qwen2moe": ("qwen2_moe", {**EXPERTS, **WIDTHS, "shared_expert_intermediate_size": 48}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, **WIDTHS, "head_dim": 32, "norm_topk_prob": True}),
    "mixtral": ("mixtral", LOCAL),
    "granitemoe": ("granitemoe", {**LOCAL, "logits_scaling": 3.0, "residual_multiplier": 0.22}),
    "gpt-oss": ("gpt_oss", {**LOCAL, "head_dim": 16, "sliding_window": 8}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3, longrope": (
        "phi3",
        {"sliding_window": None, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
    ),
}


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE, cut as GPT-2's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts(100), trainer)
    return made


def texts(count: int) -> list[str]:
    """Words, numbers, special tokens, runs of spaces."""
    chance = random.Random(0)
    latin = ["the", "quick", "brown", "fox's", "naïve", "größe", "x", "=", "12", "3.14"]
    words = [*latin, "你好", "世界", "👩", "<|im_end|>", "\n", "  ", "\t"]
    return ["".join(chance.choice([*words, " "]) for _ in range(chance.randrange(1, 30))) for _ in range(count)]


def save(folder: Path, model_type: str, settings: dict[str, Any], tokenizer: Tokenizer) -> PreTrainedModel:
    """A random model with a tokenizer, as transformers saves them."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**sizes, **settings})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>"
    ).save_pretrained(folder)
    return model


def check(model: PreTrainedModel, path: Path, tokenizer: Tokenizer) -> None:
    """Raise CheckFailed where what is read is not the model."""
    with Checkpoint(path) as checkpoint:
        found = resolve_names(checkpoint.named, checkpoint.tensors, model.state_dict())
        experts = expert_matrices(checkpoint.named)
        shifted = checkpoint.config.model_type.startswith("gemma")
        for name, values in model.state_dict().items():
            tensor, expected = checkpoint.tensors[found.tensor_of[name]], values.numpy()
            if shifted and name.endswith("norm.weight"):
                expected = expected + np.float32(1) - np.float32(1)  # what the file's sum leaves of it
            read = tensor.read_rows(0, tensor.shape[0])
            if not np.array_equal(experts[name].as_parameter(read) if name in experts else read, expected):
                raise CheckFailed(f"{path.stem}: tensor {name} is another")
        again = AutoModelForCausalLM.from_config(checkpoint.config).float().eval()
        again.load_state_dict(model.state_dict())
        ids = torch.arange(3, 63)[None]
        with torch.no_grad():
            if not torch.equal(again(ids).logits, model(ids).logits):
                raise CheckFailed(f"{path.stem}: logits differ: a setting is another")
        tokens = Tokenizer.from_file(str(checkpoint.tokenizer))
        for text in texts(TEXTS):
            if tokens.encode(text).ids != tokenizer.encode(text).ids:
                raise CheckFailed(f"{path.stem}: other ids of {text!r}")


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Convert and compare every family; exit code 2 where one differs."""
    folder.mkdir(parents=True, exist_ok=True)
    source, tokenizer = source_of(folder), make_tokenizer()
    with TemporaryDirectory() as work:
        for name, (model_type, settings) in FAMILIES.items():
            checkpoint = Path(work) / name.replace(", ", "-").replace(" ", "")
            model = save(checkpoint, model_type, settings, tokenizer)
            output = checkpoint.with_suffix(".gguf")
            command: list[str | Path] = [sys.executable, CONVERT, source, checkpoint, output, "f32"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise CheckFailed(f"{name}: llama.cpp's converter failed: {done.stderr.strip().splitlines()[-1]}")
            check(model, output, tokenizer)
            print(f"{name}: {len(model.state_dict())} tensors, logits and {TEXTS:,} texts are equal", flush=True)
