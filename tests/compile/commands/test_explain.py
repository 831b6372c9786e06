"""speccompile list and explain: what recipes say, and the plans that configurations alone make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from transformers import AutoConfig, PreTrainedConfig

from mxspec.compile.commands.explain import experts_line
from mxspec.compile.commands.speccompile import main
from mxspec.compile.planning.outline import Outline, count_weights, outline_models, read_configs
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import RecipeError
from mxspec.recipes.find_recipe import read_recipe, shipped_recipes
from mxspec.recipes.recipe import Recipe, is_mtp
from tests.compile.commands.test_speccompile import done, speccompile
from tests.conftest import DEMO

# Parameters as their makers' pages count them, in the checkpoints' safetensors files or in papers.
PUBLISHED = {
    "Salesforce/codegen-350M-mono": 356_712_448,
    "google/gemma-2-9b-it": 9_241_705_984,
    "google/gemma-2-2b-it": 2_614_341_888,
    "openai-community/gpt2-xl": 1_557_611_200,
    "openai-community/gpt2": 124_439_808,
    "meta-llama/Llama-2-7b-chat-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-125m": 125_239_296,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/pythia-160m": 162_322_944,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "bigcode/starcoder2-7b": 7_173_923_840,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "allenai/OLMoE-1B-7B-0924-Instruct": 6_919_161_856,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "openai/gpt-oss-20b": 20_914_757_184,
    "XiaomiMiMo/MiMo-7B-RL": 7_622_619_136,  # and 210,790,400 of its MTP layer
}


def report(*args: object) -> dict[str, Any]:
    result = done(*args, "--json")
    recipes: dict[str, Any] = json.loads(result.stdout)["recipes"]
    return recipes


def test_list_describes_each_recipe() -> None:
    result = done("list")
    for word in ("smollm2", "no draft", "--draft FOLDER", "Salesforce/codegen-6B-mono"):
        assert word in result.stdout
    assert report("list").keys() == shipped_recipes().keys()


def test_configurations_have_as_many_weights_as_the_models() -> None:
    """No recipe but the demo's may need more than what comes with mxspec: nothing is fetched here."""
    found = {
        source.checkpoint: count_weights(read_configs(recipe)[name])[0]
        for recipe in shipped_recipes().values()
        for name, source in (("target", recipe.target), ("draft", recipe.draft))
        if source is not None and not is_mtp(source)
    }
    assert {name: found[name] for name in PUBLISHED} == PUBLISHED


@pytest.mark.demo
def test_the_outline_of_the_demo_is_its_bundle(demo_bundles: dict[str, Path]) -> None:
    """What is planned without weights is what the compiled files and their caches have."""
    manifest = Bundle.open(demo_bundles["real"]).manifest
    recipe = read_recipe("demo").with_changes(context_length=manifest.models["target"].context_length)
    recipe = recipe.with_changes(target={"format": manifest.models["target"].format})
    for model in outline_models(recipe, read_configs(recipe)):
        entry = manifest.models[model.plan.name]
        size = 2 if entry.caches == "float16" else 4
        assert model.cache_bytes == 2 * size * entry.layers * entry.kv_heads * entry.head_size * entry.context_length
        assert model.file_bytes == pytest.approx(manifest.files[entry.weights].bytes, rel=0.01)
        assert model.fetch_bytes == 0


def test_a_folder_and_its_draft_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("target", "draft"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_bytes((DEMO / role / "config.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    said = report("explain", "target", "--draft", "draft")["target"]
    assert said["verified"] == "nothing yet"
    assert {name: model["fetch_bytes"] for name, model in said["models"].items()} == {"target": 0, "draft": 0}
    assert said["memory_bytes"] == sum(model["file_bytes"] + model["cache_bytes"] for model in said["models"].values())


def test_a_list_of_80_columns_cuts_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(main, ["list"]).output
    said = {word for recipe in shipped_recipes().values() for word in recipe.about.split()}
    assert said - set(shown.split()) == set()
    assert max(map(len, shown.splitlines())) <= 80


def outline_of(recipe: Recipe, config: PreTrainedConfig) -> Outline:
    """With two layers, for time."""
    config.num_hidden_layers = 2
    if hasattr(config, "layer_types"):
        config.layer_types = config.layer_types[:2]
    (found,) = outline_models(recipe.model_copy(update={"draft": None}), {"target": config})
    return found


@pytest.mark.parametrize("tied", [False, True])
def test_a_trimmed_head_is_outlined(tied: bool) -> None:
    """The head has the few rows that are asked for, and its own name even if it is tied."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "llama", **sizes, vocab_size=500, max_position_embeddings=64, tie_word_embeddings=tied
    )
    models = {"target": {"checkpoint": "t"}, "draft": {"checkpoint": "d", "vocabulary": 100}}
    recipe = Recipe.model_validate({"name": "x", **models})
    (_, draft) = outline_models(recipe, {"target": config, "draft": config})
    (head,) = (spec for spec in draft.plan.exported.weights if spec.sources == ("lm_head.weight",))
    assert "lm_head.weight" in draft.matrices
    assert head.shape == (100, 64)


def test_the_outline_of_a_mixture() -> None:
    """gpt-oss-20b: the published files have 13.76 GB, and a step reads an eighth of the experts."""
    recipe = read_recipe("gpt-oss-20b")
    config = read_configs(recipe)["target"]
    _, fetched = count_weights(config)
    assert fetched == pytest.approx(13.76e9, rel=0.002)
    found = outline_of(recipe, config)
    assert found.experts is not None
    assert (found.experts.count, found.experts.chosen) == (32, 4)
    expert, attention, head = 3 * 2880 * 2880, 2880 * (2 * 64 + 2 * 8) * 64, 201088 * 2880
    routers = 2 * 32 * 2880 * 2
    wanted = (2 * (4 * expert * 17 + attention * 25) + head * 25) // 32 + routers
    whole = (2 * (32 * expert * 17 + attention * 25) + head * 25) // 32 + routers
    assert (found.read_bytes(1), found.matrix_bytes) == (wanted, whole)
    said = f"4 of 32 experts a token: of {whole / 1e6:,.1f} MB of matrices a step reads {wanted / 1e6:,.1f} MB"
    assert said in experts_line(found)


def test_a_budget_is_said(tmp_path: Path) -> None:
    lines = ["calibrate = 'text.txt'", "[target]", f"checkpoint = '{DEMO / 'target'}'", "budget = '5bpw'"]
    (tmp_path / "budget.toml").write_text("\n".join(["name = 'budget'", *lines]))
    result = speccompile("explain", tmp_path / "budget.toml")
    assert "target: a budget chooses its formats at compile time; the sizes are those of mxfp6_e2m3" in result.stdout


def test_codes_of_a_mixture_are_not_rounded_again() -> None:
    """A configuration alone says that gpt-oss's experts are MXFP4; a recipe that names another format is refused."""
    recipe = read_recipe("gpt-oss-20b")
    plain = Recipe.of_checkpoints("openai/gpt-oss-20b")
    formats = [outline_of(one, read_configs(one)["target"]).plan.weight_format for one in (recipe, plain)]
    assert formats == ["mxfp6_e2m3", "mxfp4_e2m1"]
    wrong = plain.with_changes(target={"format": "mxfp6_e2m3"})
    with pytest.raises(RecipeError, match="mxfp4_e2m1 in the checkpoint, and mxfp6_e2m3 would round it a second time"):
        outline_of(wrong, read_configs(wrong)["target"])


@pytest.mark.parametrize("name", ["gpt-oss-20b", "olmoe", "qwen3-30b-a3b"])
def test_outlines_of_mixtures_have_their_experts(name: str) -> None:
    recipe = read_recipe(name)
    config = read_configs(recipe)["target"]
    found = outline_of(recipe, config)
    assert found.experts is not None
    assert len(found.experts.tensors) == 4
    assert found.cache_bytes <= found.whole_cache_bytes
