"""Checkpoints without an MTP layer, or with a broken one: one line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.formats.errors import RecipeError
from mxspec.recipes.recipe import Recipe
from tests.compile.commands.test_speccompile import failed, speccompile
from tests.compile.heads.make_mtp import save_mtp
from tests.conftest import save_checkpoint

FIRST = "model.mtp_layers.0."
Break = Callable[[dict[str, Tensor]], None]


def refused(target: Path, *options: object) -> str:
    output = target.parent / "x.bundle"
    line = failed(speccompile(target, "--draft", "mtp", "-o", output, "--context-length", 64, *options))
    assert not output.exists()
    return line


def test_another_family(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "llama", seed=5, logits=264)
    assert refused(target).endswith("--draft mtp knows the layers of glm4_moe and mimo, not those of 'llama'")


def test_a_config_without_a_layer(tmp_path: Path) -> None:
    target = save_mtp(tmp_path / "target", "mimo", num_nextn_predict_layers=0)
    assert "num_nextn_predict_layers: got 0, expected 1 or more: the checkpoint has no layer for" in refused(target)


def test_settings_that_are_the_targets() -> None:
    recipe = Recipe.of_checkpoints("./x", "mtp")
    with pytest.raises(RecipeError, match="`revision` and `adapter` do not go with the checkpoint 'mtp'"):
        recipe.with_changes(draft={"revision": "main"})


def no_layer(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        if name.startswith("model.mtp_layers"):
            del tensors[name]


def no_projection(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{FIRST}input_proj.weight"]


def no_bias(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{FIRST}self_attn.k_proj.bias"]


def a_narrow_projection(tensors: dict[str, Tensor]) -> None:
    tensors[f"{FIRST}input_proj.weight"] = tensors[f"{FIRST}input_proj.weight"][:, :64].clone()


def a_strange_tensor(tensors: dict[str, Tensor]) -> None:
    tensors[f"{FIRST}embed_proj.weight"] = torch.ones(64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (no_layer, "no tensors model.mtp_layers.0.*: the checkpoint has no layer for --draft mtp, though its config"),
        (no_projection, "tensor model.mtp_layers.0.input_proj.weight is missing"),
        (no_bias, "tensor model.mtp_layers.0.self_attn.k_proj.bias is missing"),
        (a_narrow_projection, "tensor 'model.mtp_layers.0.input_proj.weight' of model.safetensors has shape [64, 64]"),
        (a_strange_tensor, "tensor model.mtp_layers.0.embed_proj.weight has no place in an MTP layer"),
    ],
)
def test_damaged_tensors(tmp_path: Path, change: Break, said: str) -> None:
    target = save_mtp(tmp_path / "target", "mimo")
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    assert said in refused(target)


def test_a_missing_expert(tmp_path: Path) -> None:
    target = save_mtp(tmp_path / "target", "glm4_moe")
    tensors = load_file(target / "model.safetensors")
    del tensors["model.layers.3.mlp.experts.5.up_proj.weight"]
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    assert "has no tensor for expert 5 of" in refused(target)


def test_a_budget(tmp_path: Path) -> None:
    save_mtp(tmp_path / "target", "mimo")
    text = tmp_path / "text.txt"
    text.write_text("some text " * 400)
    recipe = tmp_path / "pair.toml"
    recipe.write_text(
        f'name = "pair"\ncalibrate = "{text}"\n[target]\ncheckpoint = "./target"\n[draft]\ncheckpoint = "mtp"\n'
        'budget = "6bpw"\n'
    )
    line = failed(speccompile(recipe, "-o", tmp_path / "x.bundle", "--context-length", 64))
    assert line.endswith("draft.budget: a draft that reads hidden states does not support it; give draft.format")


def test_a_second_layer_is_said(tmp_path: Path) -> None:
    target = save_mtp(tmp_path / "target", "mimo", layers=2)
    with Checkpoint(target, mtp=True) as checkpoint:
        assert checkpoint.notes == [f"{target} has 2 MTP layers: the draft is the first of them"]
    settings = json.loads((target / "config.json").read_text())
    assert settings["num_nextn_predict_layers"] == 2
