"""Recipes: what they say, and what they may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxspec.formats.errors import RecipeError
from mxspec.recipes.recipe import Recipe

GOOD = """
name = "pair"
k_max = 6
[target]
checkpoint = "./big"
keep_fp16 = ["lm_head.*"]
[draft]
checkpoint = "org/small"
revision = "main"
"""


def load(folder: Path, text: str) -> Recipe:
    path = folder / "pair.toml"
    path.write_text(text)
    return Recipe.load(path)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(folder, text)
    assert "\n" not in str(caught.value)
    assert "pair.toml" in str(caught.value)
    return str(caught.value)


def test_values_and_defaults(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    assert (recipe.name, recipe.k_max, recipe.context_length) == ("pair", 6, None)
    assert (recipe.target.format, recipe.draft.format) == ("mxfp6_e2m3", "fp16_tiles")
    assert recipe.target.keep_fp16 == ("lm_head.*",)
    assert recipe.draft.revision == "main"


def test_formats_of_single_matrices_and_activations(tmp_path: Path) -> None:
    extra = 'format = "mxfp4_e2m1"\nactivations = "int8"\nformats = [["lm_head.*", "mxint8"], ["*.0.*", "fp16"]]'
    recipe = load(tmp_path, GOOD.replace('keep_fp16 = ["lm_head.*"]', extra))
    assert (recipe.target.format, recipe.target.activations, recipe.draft.activations) == (
        "mxfp4_e2m1",
        "int8",
        "int16",
    )
    assert recipe.target.formats == (("lm_head.*", "mxint8"), ("*.0.*", "fp16_tiles"))
    changed = recipe.with_changes(target={"formats": [("a.*", "mxfp6_e2m3")]})
    assert changed.target.formats == (("a.*", "mxfp6_e2m3"),)
    with pytest.raises(RecipeError, match="mxfp6_e3m2 takes int16 activations"):
        recipe.with_changes(target={"format": "mxfp6_e3m2"})


def test_tasks_are_texts_by_name(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD + '[tasks]\ngerman = "translate English to German: "\n')
    assert recipe.tasks == recipe.as_dict()["tasks"] == {"german": "translate English to German: "}
    assert load(tmp_path, GOOD).tasks == {}
    assert "tasks" in refused(tmp_path, GOOD + '[tasks]\n"to German" = "x"\n')


def test_checkpoints_are_beside_the_recipe_or_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(tmp_path, GOOD)
    (tmp_path / "big").mkdir()
    monkeypatch.chdir("/")
    assert recipe.local_folder("./big") == tmp_path / "big"
    assert recipe.local_folder("big") == tmp_path / "big"
    assert recipe.local_folder(str(tmp_path / "big")) == tmp_path / "big"
    assert recipe.local_folder("org/small") is None
    (tmp_path / "org" / "small").mkdir(parents=True)
    assert recipe.local_folder("org/small") == tmp_path / "org" / "small"


@pytest.mark.parametrize("checkpoint", ["./demo/target", "../x/y", "/x/y", "~/x", "x", "a/b/c", ".hidden/x"])
def test_a_path_is_never_looked_up_on_the_hub(tmp_path: Path, checkpoint: str) -> None:
    with pytest.raises(RecipeError, match="no directory"):
        load(tmp_path, GOOD).local_folder(checkpoint)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("k_max", "kmax", "unknown key 'kmax' (did you mean 'k_max'?)"),
        ("keep_fp16", "keep_fp_16", "unknown key 'target.keep_fp_16' (did you mean 'keep_fp16'?)"),
        ("[draft]", "[drafd]", "unknown key 'drafd' (did you mean 'draft'?)"),
        ("revision", "revison", "unknown key 'draft.revison' (did you mean 'revision'?)"),
        ('checkpoint = "./big"', "", "key 'target.checkpoint' is missing"),
        ('checkpoint = "./big"', "checkpoint = 3", "target.checkpoint"),
        ('checkpoint = "./big"', 'checkpoint = " "', "expected a directory or a hub id"),
        ("k_max = 6", "k_max = 0", "k_max: expected more than 0, got 0"),
        ("k_max = 6", "k_max = 65", "k_max: expected at most 64, got 65"),
        ("k_max = 6", 'k_max = "6"', "k_max"),
        ("k_max = 6", "k_max = 2021-01-01", "k_max"),
        ("k_max = 6", "k_max = nan", "k_max"),
        ("k_max = 6", "k_max = ", "not valid TOML"),
        ("k_max = 6", "k_max = 6\nk_max = 7", "not valid TOML"),
        ('keep_fp16 = ["lm_head.*"]', 'keep_fp16 = "lm_head.*"', "target.keep_fp16"),
        ('keep_fp16 = ["lm_head.*"]', 'format = "mxfp6_e4m1"', "target.format"),
        ('keep_fp16 = ["lm_head.*"]', 'format = "mxfp6_e2m4"', "(did you mean 'mxfp6_e2m3'?)"),
        ('keep_fp16 = ["lm_head.*"]', 'formats = [["lm_head.*"]]', "target.formats.0"),
        ('keep_fp16 = ["lm_head.*"]', 'formats = [["lm_head.*", "mxint9"]]', "(did you mean 'mxint8'?)"),
        ('keep_fp16 = ["lm_head.*"]', 'activations = "int4"', "target.activations"),
        (
            'keep_fp16 = ["lm_head.*"]',
            'format = "mxfp6_e3m2"\nactivations = "int8"',
            "target.activations: mxfp6_e3m2 takes int16 activations, and int8 ones need one of mxfp6_e2m3, mxfp4_e2m1",
        ),
        (
            'revision = "main"',
            'format = "fp16"\nactivations = "int8"',
            "draft.activations: fp16_tiles takes int16 activations",
        ),
        ('name = "pair"', 'name = "../pair"', "name"),
        ('name = "pair"', "", "key 'name' is missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    assert says in refused(tmp_path, GOOD.replace(old, new, 1))


def test_a_file_in_place_of_a_checkpoint_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(RecipeError, match=r"weights\.bin is a file, not a directory"):
        load(tmp_path, GOOD).local_folder("./weights.bin")


def test_changes_from_the_command_line(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    changed = recipe.with_changes(
        k_max=2, context_length=None, target={"format": "mxfp6_e2m3", "keep_fp16": None}, draft={"format": None}
    )
    assert (changed.k_max, changed.target.format, changed.target.keep_fp16) == (2, "mxfp6_e2m3", ("lm_head.*",))
    assert changed.draft == recipe.draft
    assert recipe.k_max == 6
    (tmp_path / "big").mkdir()
    assert changed.local_folder("./big") == tmp_path / "big"
    with pytest.raises(RecipeError, match="k_max"):
        recipe.with_changes(k_max=-1)


def test_defaults_stay_defaults(tmp_path: Path) -> None:
    """A format that nobody asked for gives way to that of a checkpoint which is MX already."""
    recipe = load(tmp_path, 'name = "x"\n[target]\ncheckpoint = "./big"\n[draft]\ncheckpoint = "./small"\n')
    assert "format" not in recipe.with_changes(k_max=2, target={"format": None}).target.model_fields_set
    assert "format" in recipe.with_changes(target={"format": "mxfp6_e3m2"}).target.model_fields_set


def test_another_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the settings of the one before, but for what was said of its checkpoint."""
    (tmp_path / "other" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    recipe = load(tmp_path, GOOD + 'unpublished = "train it"\nformat = "mxint8"\n')
    changed = recipe.with_draft("mine")
    assert changed.draft is not None
    assert (changed.draft.checkpoint, changed.draft.format) == (str(tmp_path / "other" / "mine"), "mxint8")
    assert (changed.draft.revision, changed.draft.unpublished) == (None, None)
    assert changed.local_folder(changed.draft.checkpoint) == tmp_path / "other" / "mine"
    alone = load(tmp_path, 'name = "x"\n[target]\ncheckpoint = "./big"\n').with_draft("org/new")
    assert alone.draft is not None
    assert (alone.draft.checkpoint, alone.draft.format) == ("org/new", "fp16_tiles")


def test_a_draft_of_a_recipe_without_one_needs_a_checkpoint(tmp_path: Path) -> None:
    alone = load(tmp_path, 'name = "x"\n[target]\ncheckpoint = "./big"\n')
    with pytest.raises(RecipeError, match=r"'draft\.checkpoint' is missing"):
        alone.with_changes(draft={"format": "mxint8"})
