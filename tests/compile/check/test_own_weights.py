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
from transformers import PreTrainedModel

from mxspec.compile.check import own_weights
from mxspec.compile.check.own_weights import check_own_weights, compare_own_weights
from mxspec.compile.check.readings import random_texts
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.model import ModelPlan
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.errors import CheckFailed, CheckpointError
from mxspec.formats.manifest import ModelEntry
from tests.compile.checkpoint.test_adapter import write_adapter
from tests.compile.checkpoint.test_mx_checkpoint import COMPRESSED
from tests.compile.checkpoint.test_text_half import make_wrapped
from tests.compile.outlined import outlined
from tests.compile.test_mx_in import write_mx

Checkpoints = Callable[[str], tuple[Path, PreTrainedModel]]


def compile_checkpoint(
    checkpoint: Checkpoint, folder: Path, kind: str, change: Callable[[ModelPlan], ModelPlan] = lambda plan: plan
) -> ModelEntry:
    folder.mkdir(exist_ok=True)
    plan = change(plan_model(outlined(checkpoint, format=kind, tied=None)))
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


@pytest.mark.parametrize(("name", "save"), [("llama", as_shards), ("llama-tied", as_pickle), ("gpt2", as_older_names)])
def test_checkpoints_in_every_form_are_compared(
    name: str, save: Callable[[Path, dict[str, torch.Tensor]], None], tiny_checkpoint: Checkpoints, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(tiny_checkpoint(name)[0] / "config.json", folder)
    save(folder, load_file(tiny_checkpoint(name)[0] / "model.safetensors"))
    with Checkpoint(folder, from_pickle=True) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", "fp16_tiles")
        found, original = compare_own_weights(tmp_path / "bundle", entry, checkpoint, random_texts(entry.vocab_size))
    assert 1e-7 < found.stored.error == original.error < 2e-3


def test_a_merged_adapter_is_compared(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """With it there is little difference; the checkpoint without it is another."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    shapes = {"self_attn.q_proj": (64, 64, 4), "mlp.down_proj": (64, 96, 4)}
    modules = {f"model.layers.{layer}.{name}": shape for layer in (0, 1) for name, shape in shapes.items()}
    write_adapter(adapter, modules, lora_alpha=0.2)  # what it adds is about as large as the weights
    with Checkpoint(tiny_checkpoint("llama")[0], adapter) as merged, Checkpoint(tiny_checkpoint("llama")[0]) as plain:
        entry = compile_checkpoint(merged, tmp_path / "bundle", "fp16_tiles")
        found, original = compare_own_weights(tmp_path / "bundle", entry, merged, random_texts(entry.vocab_size))
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
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", "mxfp4_e2m1")
        assert any(tensor.own_codes for tensor in entry.tensors)
        found, _ = compare_own_weights(tmp_path / "bundle", entry, checkpoint, random_texts(entry.vocab_size))
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
        *(("llama", "mxfp6_e3m2"), ("llama-tied", "mxfp4_e2m1"), ("gpt2", "fp16_tiles")),
        *(("olmoe", "mxfp6_e3m2"), ("gpt_oss", "mxfp4_e2m1")),
    ],
)
def test_stored_weights_give_the_logits_of_transformers(
    name: str, kind: str, tiny_checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Packed or not: what is left is a cache in half precision. Of the checkpoint's own weights packed ones are far."""
    with Checkpoint(tiny_checkpoint(name)[0]) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, kind)
        found, original = compare_own_weights(tmp_path, entry, checkpoint, random_texts(entry.vocab_size))
        assert check_own_weights(tmp_path, entry, checkpoint) == found
    assert 1e-7 < found.stored.error < 2e-3
    if kind == "fp16_tiles":
        assert original.error == found.stored.error
    else:
        assert original.error > 1e-2


@pytest.mark.parametrize(("name", "part"), [("llama", "self_attn.o_proj.weight"), ("gpt_oss", "mlp.experts.down_proj")])
def test_a_tensor_taken_for_another_is_named(
    name: str, part: str, tiny_checkpoint: Checkpoints, tmp_path: Path
) -> None:
    def swap(plan: ModelPlan) -> ModelPlan:
        names = [f"model.layers.{layer}.{part}" for layer in range(2)]
        swapped = dict(zip(names, [plan.sources[name] for name in reversed(names)], strict=True))
        return replace(plan, sources={**plan.sources, **swapped})

    with Checkpoint(tiny_checkpoint(name)[0]) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, "fp16_tiles", swap)
        with pytest.raises(CheckFailed, match=rf"{part}: what the bundle stores is 1\.\d\d away from"):
            check_own_weights(tmp_path, entry, checkpoint)


@pytest.mark.parametrize("name", ["llama", "olmoe"])
def test_a_graph_that_means_something_else_is_refused(name: str, tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    def wrong_scale(plan: ModelPlan) -> ModelPlan:
        node = next(node for node in plan.exported.model.graph if "scale" in node.attributes)
        node.attributes["scale"] = ir.AttrFloat32("scale", 1.5 * node.attributes["scale"].as_float())
        return plan

    with Checkpoint(tiny_checkpoint(name)[0]) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, "fp16_tiles", wrong_scale)
        with pytest.raises(CheckFailed, match=r"target.onnx: differs from transformers with the same weights by \d"):
            check_own_weights(tmp_path, entry, checkpoint)


def test_a_head_that_is_not_the_embedding_that_it_is_tied_to(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """As adapters merged into one of them leave it: transformers keeps the head of the file."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    tensors: dict[str, Any] = load_file(tiny_checkpoint("llama-tied")[0] / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((tiny_checkpoint("llama-tied")[0] / "config.json").read_bytes())
    with Checkpoint(folder) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path / "bundle", "fp16_tiles")
        head = next(tensor for tensor in entry.tensors if tensor.name == "lm_head.weight")
        if head.sources == ("model.embed_tokens.weight",):
            with pytest.raises(CheckFailed, match=r"lm_head.weight: what the bundle stores is 1\.\d\d away from"):
                check_own_weights(tmp_path / "bundle", entry, checkpoint)
        else:
            assert check_own_weights(tmp_path / "bundle", entry, checkpoint) is not None


def test_another_checkpoint(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    with Checkpoint(tiny_checkpoint("llama")[0]) as checkpoint:
        entry = compile_checkpoint(checkpoint, tmp_path, "fp16_tiles")
    with (
        Checkpoint(tiny_checkpoint("gpt2")[0]) as other,
        pytest.raises(CheckpointError, match=r"was made from 'model.embed_tokens.weight', which .* lacks"),
    ):
        check_own_weights(tmp_path, entry, other)


def test_a_large_model_is_left_to_its_twin(
    tiny_checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_weights, "MOST_BYTES", 1000)
    with Checkpoint(tiny_checkpoint("llama")[0]) as checkpoint:
        assert check_own_weights(tmp_path, compile_checkpoint(checkpoint, tmp_path, "fp16_tiles"), checkpoint) is None
