"""Tables that models have in common are stored in the target's file alone, and every reader finds them there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file
from transformers import LlamaConfig

from mxspec.compile.planning.layout import share_tables
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.formats.bundle import Bundle
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe
from tests.compile.commands.test_speccompile import done, speccompile

TABLES = ("model.rotary_emb.cos", "model.rotary_emb.sin")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"vocab_size": 120, "max_position_embeddings": 256}


def plan(name: ModelName, context: int = 96, **changes: Any) -> ModelPlan:
    wanted = TargetRecipe(checkpoint="x")
    recipe = Recipe(name="x", target=wanted, draft=DraftRecipe(checkpoint="x"))
    return plan_without_weights(Model(name, LlamaConfig(**SIZES | changes), wanted, recipe, context))


@pytest.fixture(scope="module")
def target() -> ModelPlan:
    return plan("target")


def test_equal_tables_are_borrowed(target: ModelPlan) -> None:
    alone = plan("draft", hidden_size=32, num_attention_heads=2)  # heads of the same size
    first, draft = share_tables([target, alone])
    assert first.borrowed == {}
    assert draft.borrowed == {name: target.layout.offsets[name] for name in TABLES}
    assert {spec.name for spec in alone.exported.weights} - {spec.name for spec in draft.stored} == set(TABLES)
    assert alone.layout.file_bytes - draft.layout.file_bytes == pytest.approx(2 * 96 * 8 * 4, abs=512)  # its header


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"head_dim": 8}, id="heads"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, id="theta"),
        pytest.param({"context": 95}, id="context"),
    ],
)
def test_others_are_not(target: ModelPlan, changes: dict[str, Any]) -> None:
    draft = plan("draft", **changes)
    assert share_tables([target, draft])[1].borrowed == {}


def test_a_bundle_holds_them_once(tiny_bundles: dict[str, Path]) -> None:
    """Texts of this bundle are compared with plain ones elsewhere; here is where its tables lie."""
    bundle = Bundle.open(tiny_bundles["near"])
    target, draft = bundle.manifest.models["target"], bundle.manifest.models["draft"]
    assert (target.borrowed, draft.borrowed) == ((), TABLES)
    graph = onnx.load(bundle.graph_path("draft"), load_external_data=False).graph
    places = {value.name: {entry.key: entry.value for entry in value.external_data} for value in graph.initializer}
    offsets = {tensor.name: tensor.offset for tensor in target.tensors}
    for name in TABLES:
        assert (places[name]["location"], int(places[name]["offset"])) == (target.weights, offsets[name])
    assert not set(TABLES) & load_file(bundle.weights_path("draft")).keys()


def test_emitted_models_have_their_own(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    bundle = tiny_bundles["near"]
    done("emit", "standard", bundle, "-o", tmp_path / "standard")
    stored = load_file(tmp_path / "standard" / "draft.safetensors")
    theirs = load_file(bundle / "target.safetensors")
    for name in TABLES:
        np.testing.assert_array_equal(stored[name], theirs[name])


def test_the_report_names_shared_tables(tiny_bundles: dict[str, Path]) -> None:
    printed = speccompile("inspect", tiny_bundles["near"]).output
    assert f"read in the target's file, the same there: {', '.join(TABLES)}" in printed
    report = json.loads(speccompile("inspect", tiny_bundles["near"], "--json").stdout)
    assert report["models"]["draft"]["borrowed"] == list(TABLES)
