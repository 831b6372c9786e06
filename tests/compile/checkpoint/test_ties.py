"""A tie that config.json speaks of and the tensors contradict: as transformers loads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mxspec.compile.checkpoint import ties
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.plan import plan_model
from tests.compile.outlined import outlined

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    tied = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64, tie_word_embeddings=True, max_position_embeddings=64))
    tied.save_pretrained(tmp_path)
    return tmp_path


def add_head(folder: Path, head: torch.Tensor) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert HEAD not in tensors
    save_file(tensors | {HEAD: head}, folder / "model.safetensors", {"format": "pt"})


def head_of(folder: Path) -> tuple[str, list[str]]:
    """The tensor that the packed head is made from, and what the checkpoint says of it."""
    with Checkpoint(folder) as checkpoint:
        plan = plan_model(outlined(checkpoint, 32))
        matrices = [spec for spec in plan.exported.weights if spec.kind == "matmul"]
        heads = {plan.sources[str(spec.source)].name for spec in matrices if spec.shape[0] == 64}
        (name,) = heads & {EMBEDDING, HEAD}
        return name, checkpoint.notes


def transformers_ties(folder: Path) -> bool:
    model = AutoModelForCausalLM.from_pretrained(folder)
    same: bool = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    return same


@pytest.mark.parametrize("row", [0, 63])
def test_a_separate_head_is_kept(folder: Path, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "PIECE_VALUES", 10 * 32)  # seven pieces
    head = load_file(folder / "model.safetensors")[EMBEDDING]
    head[row, 31] += 1e-3
    add_head(folder, head.clone())
    assert not transformers_ties(folder)
    name, notes = head_of(folder)
    assert name == HEAD
    assert "both are kept" in notes[0]


def test_an_equal_head_is_tied(folder: Path) -> None:
    add_head(folder, load_file(folder / "model.safetensors")[EMBEDDING].clone())
    assert transformers_ties(folder)
    assert head_of(folder) == (EMBEDDING, [])


def test_an_equal_head_of_another_type_is_tied(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[EMBEDDING] = tensors[EMBEDDING].bfloat16().float()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    add_head(folder, tensors[EMBEDDING].bfloat16())
    assert head_of(folder) == (EMBEDDING, [])


def test_other_names_are_seen_through(folder: Path) -> None:
    """Tensors without the prefix of the model, as a base model's checkpoint has them."""
    tensors = load_file(folder / "model.safetensors")
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(tensors | {HEAD: tensors["embed_tokens.weight"] * 2}, folder / "model.safetensors", {"format": "pt"})
    assert not transformers_ties(folder)
    with Checkpoint(folder) as checkpoint:
        assert not checkpoint.config.tie_word_embeddings


def test_untied_tables_need_no_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | {"tie_word_embeddings": False}))
    add_head(folder, torch.zeros(64, 32))
    monkeypatch.setattr(ties, "name_parameters", None)
    with Checkpoint(folder) as checkpoint:
        assert not checkpoint.notes
        assert np.count_nonzero(checkpoint.tensors[HEAD].read_rows(0, 64)) == 0
