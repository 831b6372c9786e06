"""A table that is embedding and head, stored once: what the graph then means, what is stored, and when it is done."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from mxspec.compile.check.own_weights import compare_own_weights
from mxspec.compile.check.readings import random_texts
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.compile.interchange import standard
from mxspec.compile.planning.formats import Formats
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.outline import outline_models
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.weight_format import packed_shape
from mxspec.recipes.recipe import Recipe, TargetRecipe
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from tests.compile.commands.test_speccompile import done, speccompile, write_pair
from tests.compile.test_mx_in import QUARK, write_mx

Checkpoints = Callable[[str], tuple[Path, PreTrainedModel]]
CONTEXT = 96  # traces are those of test_export_logits.py
TEXT = np.random.default_rng(0).integers(3, 118, 40).tolist()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model in a folder, as a compile writes it."""

    folder: Path
    plan: ModelPlan
    entry: ModelEntry

    @property
    def operators(self) -> list[str]:
        return [node.op_type for node in self.plan.exported.model.graph]

    @property
    def looked_up(self) -> list[TensorEntry]:
        return [tensor for tensor in self.entry.tensors if tensor.looked_up]

    def logits(self, cut: int = 30) -> np.ndarray:
        """After each token of TEXT, read in two calls."""
        session = Session(self.folder, self.entry, self.entry.vocab_size, slots=1)
        parts = [(0, TEXT[:cut]), (cut, TEXT[cut:])]
        return np.concatenate([session.run([Part(0, past, part, len(part))]).copy() for past, part in parts])


def compiled(checkpoint: Path, folder: Path, **wanted: object) -> Compiled:
    folder.mkdir()
    target = TargetRecipe.model_validate({"checkpoint": str(checkpoint), **wanted})
    recipe = Recipe(name="x", caches="float32", target=target)
    with Checkpoint(checkpoint) as opened:
        plan = plan_model(Model("target", opened, target, recipe, CONTEXT))
        return Compiled(folder, plan, write_model(plan, folder, lambda count: None).entry)


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma2", "bloom"])
def test_in_float16_the_bits_are_those_of_two_tables(name: str, tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Rows that do not fill the last tile; embeddings that are scaled, added to positions, normed."""
    path, model = tiny_checkpoint(name)
    once = compiled(path, tmp_path / "once", format="fp16")
    twice = compiled(path, tmp_path / "twice", format="fp16", tied="twice")
    assert (once.operators.count("PackedGather"), twice.operators.count("PackedGather")) == (1, 0)
    assert np.array_equal(once.logits(), twice.logits())
    assert np.array_equal(once.logits(1), once.logits())
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TEXT])).logits[0].numpy()
    assert np.abs(once.logits() - expected).max() < 2e-6 * np.abs(expected).max()
    (head,) = once.looked_up
    vocabulary, width = head.shape
    assert twice.looked_up == []
    sizes = [sum(tensor.bytes for tensor in model.entry.tensors) for model in (once, twice)]
    assert sizes[1] - sizes[0] == 2 * vocabulary * width


def test_in_an_mx_format_the_embedding_is_the_rounded_head(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """transformers' model with the stored rows as head and embedding agrees, with the head's alone it does not."""
    path, _ = tiny_checkpoint("qwen2")
    model = compiled(path, tmp_path / "x", format="mxfp4_e2m1", tied="once")
    (head,) = model.looked_up
    assert (head.name, head.sources) == ("lm_head.weight", ("model.embed_tokens.weight",))
    texts = random_texts(model.entry.vocab_size, CONTEXT)
    tensors = tuple(tensor.model_copy(update={"looked_up": False}) for tensor in model.entry.tensors)
    wrong = model.entry.model_copy(update={"tensors": tensors})
    with Checkpoint(path) as checkpoint:
        right, other = (compare_own_weights(model.folder, it, checkpoint, texts)[0] for it in (model.entry, wrong))
    assert right.stored.error < 1e-3  # of int16 rows
    with pytest.raises(CheckFailed, match="differs from transformers with the same weights"):
        other.check(wrong)
    assert compiled(path, tmp_path / "y", format="mxfp4_e2m1").looked_up == []


@pytest.mark.parametrize(
    ("settings", "once"),
    [
        ({"format": "fp16"}, True),
        ({"format": "fp16", "tied": "twice"}, False),
        ({"format": "mxint8"}, False),
        ({"format": "mxint8", "tied": "once"}, True),
        ({"format": "mxint8", "keep_fp16": ("lm_head.weight",)}, True),
        ({"format": "fp16", "formats": (("lm_head.*", "mxint8"),)}, False),
    ],
)
def test_a_table_is_stored_once_on_request_or_if_nothing_is_lost(
    settings: dict[str, object], once: bool, tiny_checkpoint: Checkpoints
) -> None:
    path, model = tiny_checkpoint("qwen2")
    target = TargetRecipe.model_validate({"checkpoint": str(path), **settings})
    assert Formats(model, target, {}).stored_once("model.embed_tokens.weight") == once


@pytest.mark.parametrize("name", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", ["once", "twice"])
def test_bytes_are_foretold(tied: str, name: str, tiny_checkpoint: Checkpoints) -> None:
    path, _ = tiny_checkpoint(name)
    target = TargetRecipe.model_validate({"checkpoint": str(path), "format": "mxint8", "tied": tied})
    recipe = Recipe(name="x", target=target, context_length=CONTEXT)
    config = load_config(path)
    (found,) = outline_models(recipe, {"target": config})
    once = tied == "once" and name == "qwen2"
    assert found.plan.shares_table == once
    parameters = AutoModelForCausalLM.from_config(config).state_dict()
    matrices = {key: value.shape for key, value in parameters.items() if value.ndim == 2 and "embed" not in key}
    assert len(found.matrices) == len(matrices)
    embedding = 0 if once else 2 * config.vocab_size * config.hidden_size
    packed = sum(math.prod(packed_shape("mxint8", *shape)) for shape in matrices.values())
    others = sum(4 * value.numel() for value in parameters.values() if value.ndim == 1)
    tables = 4 * CONTEXT * (config.hidden_size // config.num_attention_heads)  # cosines and sines
    total = packed + embedding + others + tables
    assert found.file_bytes == pytest.approx(total, rel=0.05)  # of a few kB the header is 3 %


def test_codes_of_the_checkpoint_are_stored_once(tmp_path: Path) -> None:
    """A tied head that is MX already: nothing is lost, so it need not be asked for."""
    model, _ = write_mx(tmp_path, QUARK | {"exclude": []}, head=True)
    model.get_input_embeddings().weight = model.get_output_embeddings().weight
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    once = compiled(tmp_path, tmp_path / "once")
    assert [tensor.own_codes for tensor in once.looked_up] == [True]
    twice = compiled(tmp_path, tmp_path / "twice", tied="twice")
    assert twice.looked_up == []
    assert np.array_equal(once.logits(), twice.logits())  # what the codes stand for are float16 values here
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TEXT])).logits[0].numpy()
    assert np.abs(once.logits() - expected).max() < 2e-4 * np.abs(expected).max()


def test_a_separate_head_is_stored_next_to_its_embedding(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    tied, _ = tiny_checkpoint("qwen2")
    broken = tmp_path / "broken"  # as an adapter that was merged into one of the two leaves it
    broken.mkdir()
    tensors = load_file(tied / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    (broken / "config.json").write_bytes((tied / "config.json").read_bytes())
    found = compiled(broken, tmp_path / "x", format="fp16", tied="once")
    assert found.looked_up == []
    by_name = {tensor.name: tensor for tensor in found.entry.tensors}
    assert by_name["lm_head.weight"].sources == ("lm_head.weight",)
    assert by_name["model.embed_tokens.weight"].format == "fp16"


@pytest.mark.parametrize("weight_format", ["fp16", "mxfp6_e2m3"])
def test_as_standard_onnx(weight_format: str, tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """ONNX's reference evaluator reads the rows of the one matrix that the head multiplies with."""
    model = compiled(tiny_checkpoint("qwen2")[0], tmp_path / "x", format=weight_format, tied="once")
    folder = tmp_path / "standard"
    folder.mkdir()
    plan = standard.plan_model(model.folder, model.entry, "e8m0")
    standard.write_model(plan, model.folder, folder, lambda count: None)
    standard.check(folder / model.entry.graph)
    evaluator = ReferenceEvaluator(onnx.load(folder / model.entry.graph))
    cache = np.zeros((1, model.entry.kv_heads, 0, model.entry.head_size), np.float32)
    ids = np.array([TEXT])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(TEXT))[None]}
    inputs |= {name: cache for name in evaluator.input_names if name.startswith("past_key_values")}
    logits = evaluator.run(["logits"], inputs)[0][0]
    assert np.abs(logits - model.logits()).max() < 5e-4 * np.abs(logits).max()


def test_the_command_and_its_output(tmp_path: Path) -> None:
    """The target here has two tables, and that is said."""
    recipe, output = write_pair(tmp_path, "llama"), tmp_path / "x.bundle"
    options = ("--tied", "once", "--draft-format", "mxfp4_e2m1", "--draft-tied", "once", "--with-baseline")
    result = done(recipe, "-o", output, *options)
    said = " ".join(result.stderr.split())
    assert said.count("lm_head.weight is the embedding, too: tokens are looked up in its tiles") == 1
    assert said.count("the target has an embedding and a head of their own: `tied` changes nothing") == 1
    models = Bundle.open(output).manifest.models
    looked_up = {name: sum(tensor.looked_up for tensor in entry.tensors) for name, entry in models.items()}
    assert looked_up == {"target": 0, "draft": 1, "baseline": 0}
    shown = speccompile("inspect", output, "--json")
    groups = json.loads(shown.stdout)["models"]["draft"]["groups"]
    assert [group["name"] for group in groups if group["looked_up"]] == ["lm_head"]
    refused = speccompile(recipe, "--tied", "never")
    assert refused.exit_code == 1
    assert "'never' is not one of 'once', 'twice'" in refused.stderr
