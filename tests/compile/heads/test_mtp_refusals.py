"""Checkpoints without an MTP layer, or with a broken one: one line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.formats.errors import RecipeError
from mxspec.recipes.recipe import Recipe
from tests.compile.commands.test_speccompile import failed, speccompile
from tests.compile.heads.make_mtp import save_mtp
from tests.compile.heads.test_refusals import Change, change_tensors
from tests.conftest import save_checkpoint

FIRST = "model.mtp_layers.0."


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


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        (
            "mimo",
            lambda tensors: dict.fromkeys(name for name in tensors if name.startswith("model.mtp_layers")),
            "no tensors model.mtp_layers.0.*: the checkpoint has no layer for --draft mtp, though its config",
        ),
        (
            "mimo",
            lambda _: {f"{FIRST}input_proj.weight": None},
            "tensor model.mtp_layers.0.input_proj.weight is missing",
        ),
        (
            "mimo",
            lambda _: {f"{FIRST}self_attn.k_proj.bias": None},
            "tensor model.mtp_layers.0.self_attn.k_proj.bias is missing",
        ),
        (
            "mimo",
            lambda tensors: {f"{FIRST}input_proj.weight": tensors[f"{FIRST}input_proj.weight"][:, :64].clone()},
            "tensor 'model.mtp_layers.0.input_proj.weight' of model.safetensors has shape [64, 64]",
        ),
        (
            "mimo",
            lambda _: {f"{FIRST}embed_proj.weight": torch.ones(64)},
            "tensor model.mtp_layers.0.embed_proj.weight has no place in an MTP layer",
        ),
        (
            "glm4_moe",
            lambda _: {"model.layers.3.mlp.experts.5.up_proj.weight": None},
            "has no tensor for expert 5 of",
        ),
    ],
)
def test_damaged_tensors(tmp_path: Path, family: str, change: Change, said: str) -> None:
    target = save_mtp(tmp_path / "target", family)
    change_tensors(target, change)
    assert said in refused(target)


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
