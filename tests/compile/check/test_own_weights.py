"""Compiled models against transformers with the weights that they store: right ones pass, a wrong tensor is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from mxspec.compile.check import own_weights
from mxspec.compile.check.own_weights import check_own_weights, compare_own_weights
from mxspec.compile.check.readings import random_texts
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.errors import CheckFailed, CheckpointError
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe
from tests.compile.checkpoint.test_adapter import write_adapter
from tests.compile.checkpoint.test_text_half import make_wrapped
from tests.compile.test_mx_in import COMPRESSED, write_mx

LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 120, "max_position_embeddings": 96,
}  # fmt: skip
GPT2 = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 96, "vocab_size": 120}  # its c_proj is square
MODELS = {
    "llama": ("llama", LLAMA),
    "tied": ("llama", {**LLAMA, "tie_word_embeddings": True}),
    "gpt2": ("gpt2", GPT2),
    "olmoe": ("olmoe", {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2}),
    "gpt_oss": ("gpt_oss", {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Call it with a name of MODELS for a folder with a random checkpoint, float16."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            model_type, settings = MODELS[name]
            torch.manual_seed(1)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
            for parameter in model.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            made[name] = tmp_path_factory.mktemp(name)
            model.half().save_pretrained(made[name])
        return made[name]

    return make


def compile_checkpoint(
    checkpoint: Checkpoint, folder: Path, kind: str | None, change: Callable[[ModelPlan], ModelPlan] = lambda plan: plan
) -> ModelEntry:
    wanted = TargetRecipe(checkpoint="x") if kind is None else TargetRecipe(checkpoint="x", format=kind)
    recipe = Recipe(name="x", target=wanted, draft=DraftRecipe(checkpoint="x"))
    plan = change(plan_model(Model("target", checkpoint, wanted, recipe, 96)))
    folder.mkdir(exist_ok=True)
    return write_model(plan, folder, lambda count: None).entry


def as_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Two, whose index has no metadata: transformers' own reader of files does not take that."""
    weight_map = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def as_pickle(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")


def as_older_names(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Of a model without a head, whose prefix transformers adds."""
    renamed = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    save_file(renamed, folder / "model.safetensors")


@pytest.mark.parametrize(("name", "save"), [("llama", as_shards), ("tied", as_pickle), ("gpt2", as_older_names)])
def test_checkpoints_in_every_form_are_compared(
    name: str, save: Callable[[Path, dict[str, torch.Tensor]], None], checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(checkpoints(name) / "config.json", folder)
    save(folder, load_file(checkpoints(name) / "model.safetensors"))
    with Checkpoint(folder, from_pickle=True) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", "fp16_tiles")
        found, original = compare_own_weights(tmp_path / "bundle", entry, checkpoint, random_texts(120))
    assert 1e-7 < found.stored.error == original.error < 2e-3


def test_a_merged_adapter_is_compared(checkpoints: Callable[[str], Path], tmp_path: Path) -> None:
    """With it there is little difference; the checkpoint without it is another."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    shapes = {"self_attn.q_proj": (64, 64, 4), "mlp.down_proj": (64, 96, 4)}
    modules = {f"model.layers.{layer}.{name}": shape for layer in (0, 1) for name, shape in shapes.items()}
    write_adapter(adapter, modules, lora_alpha=0.2)  # what it adds is about as large as the weights
    with Checkpoint(checkpoints("llama"), adapter) as merged, Checkpoint(checkpoints("llama")) as plain:
        entry = compile_checkpoint(merged, tmp_path / "bundle", "fp16_tiles")
        found, original = compare_own_weights(tmp_path / "bundle", entry, merged, random_texts(120))
        assert found.stored.error < 2e-3
        assert original.error < 2e-3
        with pytest.raises(CheckFailed, match=r"away from model\.layers"):
            check_own_weights(tmp_path / "bundle", entry, plain)


def test_matrices_that_are_mx_are_compared(tmp_path: Path) -> None:
    """Of codes nothing is rounded: with the checkpoint's weights the error is that of the stored ones."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_mx(folder, COMPRESSED, max_position_embeddings=96)
    with Checkpoint(folder) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", None)
        assert any(tensor.own_codes for tensor in entry.tensors)
        found, _ = compare_own_weights(tmp_path / "bundle", entry, checkpoint, random_texts(120))
        assert check_own_weights(tmp_path / "bundle", entry, checkpoint) == found
    assert found.stored.error < 2e-3


def test_the_text_half_is_compared(tmp_path: Path) -> None:
    make_wrapped("mistral3").save_pretrained(tmp_path / "checkpoint")
    with Checkpoint(tmp_path / "checkpoint") as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", "fp16_tiles")
        found = check_own_weights(tmp_path / "bundle", entry, checkpoint)
    assert found is not None
    assert found.stored.error < 2e-3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("llama", "mxfp6_e3m2"), ("tied", "mxfp4_e2m1"), ("gpt2", "fp16_tiles")),
        *(("olmoe", "mxfp6_e3m2"), ("gpt_oss", "mxfp4_e2m1")),
    ],
)
def test_stored_weights_give_the_logits_of_transformers(
    name: str, kind: str, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    """Packed or not: what is left is a cache in half precision. Of the checkpoint's own weights packed ones are far."""
    with Checkpoint(checkpoints(name)) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, kind)
        found, original = compare_own_weights(tmp_path, entry, checkpoint, random_texts(120))
        assert check_own_weights(tmp_path, entry, checkpoint) == found
    assert 1e-7 < found.stored.error < 2e-3
    if kind == "fp16_tiles":
        assert original.error == found.stored.error
    else:
        assert original.error > 1e-2


@pytest.mark.parametrize(("name", "part"), [("llama", "self_attn.o_proj.weight"), ("olmoe", "mlp.experts.down_proj")])
def test_a_tensor_taken_for_another_is_named(
    name: str, part: str, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    def swap(plan: ModelPlan) -> ModelPlan:
        names = [f"model.layers.{layer}.{part}" for layer in range(2)]
        swapped = dict(zip(names, [plan.sources[name] for name in reversed(names)], strict=True))
        return replace(plan, sources={**plan.sources, **swapped})

    with Checkpoint(checkpoints(name)) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, "fp16_tiles", swap)
        with pytest.raises(CheckFailed, match=rf"{part}: what the bundle stores is 1\.\d\d away from"):
            check_own_weights(tmp_path, entry, checkpoint)


@pytest.mark.parametrize("name", ["llama", "olmoe"])
def test_a_graph_that_means_something_else_is_refused(
    name: str, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    def wrong_scale(plan: ModelPlan) -> ModelPlan:
        node = next(node for node in plan.exported.model.graph if "scale" in node.attributes)
        node.attributes["scale"] = ir.AttrFloat32("scale", 1.5 * node.attributes["scale"].as_float())
        return plan

    with Checkpoint(checkpoints(name)) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, "fp16_tiles", wrong_scale)
        with pytest.raises(CheckFailed, match=r"target.onnx: differs from transformers with the same weights by \d"):
            check_own_weights(tmp_path, entry, checkpoint)


def test_a_head_that_is_not_the_embedding_that_it_is_tied_to(
    checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    """As adapters merged into one of them leave it: transformers keeps the head of the file."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    tensors: dict[str, Any] = load_file(checkpoints("tied") / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((checkpoints("tied") / "config.json").read_bytes())
    with Checkpoint(folder) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", "fp16_tiles")
        head = next(tensor for tensor in entry.tensors if tensor.name == "lm_head.weight")
        if head.sources == ("model.embed_tokens.weight",):
            with pytest.raises(CheckFailed, match=r"lm_head.weight: what the bundle stores is 1\.\d\d away from"):
                check_own_weights(tmp_path / "bundle", entry, checkpoint)
        else:
            assert check_own_weights(tmp_path / "bundle", entry, checkpoint) is not None


def test_another_checkpoint(checkpoints: Callable[[str], Path], tmp_path: Path) -> None:
    with Checkpoint(checkpoints("llama")) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, "fp16_tiles")
    with (
        Checkpoint(checkpoints("gpt2")) as other,
        pytest.raises(CheckpointError, match=r"was made from 'model.embed_tokens.weight', which .* lacks"),
    ):
        check_own_weights(tmp_path, entry, other)


def test_a_large_model_is_left_to_its_twin(
    checkpoints: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_weights, "MOST_BYTES", 1000)
    with Checkpoint(checkpoints("llama")) as checkpoint:
        assert check_own_weights(tmp_path, compile_checkpoint(checkpoint, tmp_path, "fp16_tiles"), checkpoint) is None
