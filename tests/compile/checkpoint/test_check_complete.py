"""Names and shapes are checked before anything is computed: what is missing is said in a second."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from mxspec.compile.checkpoint.checkpoint import Checkpoint, require_complete
from mxspec.formats.errors import CheckpointError

SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 120}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
NORM = "model.layers.0.input_layernorm.weight"


def write(folder: Path, kind: str = "llama", **settings: object) -> Path:
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | settings)).save_pretrained(folder)
    return folder


def refused(folder: Path) -> str:
    with Checkpoint(folder) as checkpoint, pytest.raises(CheckpointError) as caught:
        require_complete(checkpoint)
    return str(caught.value)


def test_a_whole_checkpoint_is_taken(tmp_path: Path) -> None:
    for kind, settings in (("llama", {"tie_word_embeddings": True, "intermediate_size": 96}), ("gptj", {})):
        with Checkpoint(write(tmp_path / kind, kind, **settings)) as checkpoint:
            require_complete(checkpoint)


def test_what_is_missing_and_what_has_another_shape(tmp_path: Path) -> None:
    path = write(tmp_path, intermediate_size=96) / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {NORM: torch.ones(63)}, path)
    said = f"tensor '{NORM}' of model.safetensors has shape [63], but {NORM} is [64] by {tmp_path / 'config.json'}"
    assert said in refused(tmp_path)
    save_file(tensors | {NORM: torch.ones(64, dtype=torch.int8)}, path)
    assert f"tensor '{NORM}' of model.safetensors is I8" in refused(tmp_path)
    del tensors[NORM]
    save_file(tensors, path)
    assert f"no tensor for {NORM}; it has" in refused(tmp_path)


def test_tables_without_bounds_are_never_made(tmp_path: Path) -> None:
    """GPT-J's are made when the model is built, of all positions that its config names."""
    config = write(tmp_path, "gptj") / "config.json"
    config.write_text(config.read_text().replace('"n_positions": 2048', f'"n_positions": {1 << 26}'))
    said = "max_position_embeddings: 67108864 positions make tables of 17.2 GB, expected at most 1.1 GB"
    assert said in refused(tmp_path)
