"""Recipes that come with mxspec, and what a name on the command line may mean."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mxspec.formats.errors import RecipeError
from mxspec.recipes import find_recipe
from mxspec.recipes.find_recipe import read_recipe, recipes_folder, shipped_config, shipped_recipes
from mxspec.recipes.recipe import Rounding, less_loss

PAIRS = {
    "bart-cnn", "codegen", "flan-t5", "gemma2", "gemma3", "gpt-oss-20b", "gpt2-xl", "llama2-chat", "llama3", "mimo",
    "mistral", "olmoe", "opt", "pythia", "qwen2.5", "qwen3", "qwen3-30b-a3b", "smollm2", "starcoder2", "t5-xxl",
    "tinyllama",
}  # fmt: skip


def test_shipped_recipes_are_found_by_their_names() -> None:
    shipped = shipped_recipes()
    assert shipped.keys() >= PAIRS
    for name, recipe in shipped.items():
        assert read_recipe(name) == recipe
        assert recipe.name == name
        assert recipe.about


def test_every_shipped_recipe_has_the_configurations_of_its_models() -> None:
    for recipe in (shipped_recipes()[name] for name in PAIRS):
        for model in (recipe.target, recipe.draft):
            assert model is None or shipped_config(recipe.source_of(model).checkpoint), model


def test_pairs_of_ours_are_listed_only_where_their_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel leaves recipes/demo and recipes/seq2seq out, as pyproject.toml says."""
    wheel = tmp_path / "recipes"
    shutil.copytree(recipes_folder(), wheel, ignore=shutil.ignore_patterns("demo", "seq2seq"))
    monkeypatch.setattr(find_recipe, "recipes_folder", lambda: wheel)
    assert (wheel / "demo.toml").is_file()
    assert shipped_recipes().keys() == PAIRS
    with pytest.raises(RecipeError, match="no recipe and no checkpoint 'demo'"):
        read_recipe("demo")
    (wheel / "demo" / "target").mkdir(parents=True)
    (wheel / "demo" / "draft").mkdir()
    assert shipped_recipes().keys() == {*PAIRS, "demo"}


def test_a_recipe_comes_from_a_file_a_folder_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.toml"
    file.write_text('name = "own"\n[target]\ncheckpoint = "./big"\n')
    (tmp_path / "my model+").mkdir()
    (tmp_path / "demo").mkdir()
    assert read_recipe("mine.toml").name == "own"
    assert read_recipe(str(file), "org/small").draft is not None
    of_folder = read_recipe("my model+")
    assert (of_folder.name, of_folder.target.checkpoint, of_folder.draft) == ("mymodel", "my model+", None)
    assert of_folder.local_folder("my model+") == tmp_path / "my model+"
    of_hub = read_recipe("org/Some.Model-7B", "org/small")
    assert (of_hub.name, of_hub.target.format) == ("Some.Model-7B", "mxfp6_e2m3")
    assert of_hub.draft is not None
    assert (of_hub.draft.checkpoint, of_hub.draft.format) == ("org/small", "fp16_tiles")
    assert read_recipe("demo").name == "demo"
    assert read_recipe("demo").target.checkpoint == "./demo/target"  # the recipe, not the folder
    assert read_recipe("./demo").target.checkpoint == "./demo"
    assert read_recipe(".").name == tmp_path.name.lstrip("_-.")


@pytest.mark.parametrize("name", ["deno", "a/b/c", "nothing", "../nowhere"])
def test_neither_a_recipe_nor_a_checkpoint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="no recipe and no checkpoint") as caught:
        read_recipe(name)
    assert "hub id" in str(caught.value)
    assert name != "deno" or "did you mean 'demo'" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it does not begin as a GGUF file does"),
        (b"\x96" * 99, "it does not begin as a GGUF file does"),
        (b"version https://git-lfs.github.com/spec/v1", "it is a git-lfs pointer"),
    ],
)
def test_a_damaged_gguf_file_is_not_read_as_a_recipe(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(RecipeError, match=f"checkpoint .*model.gguf': {says}"):
        read_recipe(str(file))


@pytest.mark.parametrize(
    ("format_name", "rounding", "says"),
    [
        ("mxfp6_e3m2", "gptq", "--target-format mxfp6_e2m3 or --calibrate TEXT or more --rounding-minutes, and least"),
        ("mxfp6_e2m3", "nearest", "with --rounding gptq, and least with --target-format mxint8"),
        ("mxint8", "scale", "less is lost with --rounding gptq"),
    ],
)
def test_a_loss_is_answered_with_what_was_not_done_yet(format_name: str, rounding: Rounding, says: str) -> None:
    advice = less_loss(format_name, rounding)
    assert says in advice
    assert format_name not in advice


def test_a_recipe_file_that_is_not_there_is_never_looked_up_on_the_hub() -> None:
    with pytest.raises(RecipeError, match="No such file"):
        read_recipe("recipes/none.toml")
