"""Recipes that come with mxspec, and the recipe that somebody names: shipped, a file, or made of a checkpoint."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from mxspec.formats.errors import RecipeError, did_you_mean
from mxspec.formats.file_kind import is_gguf, what_it_is
from mxspec.formats.manifest import MANIFEST
from mxspec.recipes.recipe import Recipe, TargetRecipe, is_checkpoint, is_hub_id


def recipes_folder() -> Path:
    """Where the shipped recipes lie, and in `configs` the configurations of their models."""
    return Path(str(files("mxspec.recipes")))


def shipped_recipes() -> dict[str, Recipe]:
    """The recipes that can be compiled where mxspec is installed, by name: a wheel has no weights of the demo pair."""
    recipes = {path.stem: Recipe.load(path) for path in sorted(recipes_folder().glob("*.toml"))}
    return {name: recipe for name, recipe in recipes.items() if _can_be_had(recipe)}


def read_recipe(given: str, draft: str | None = None) -> Recipe:
    """The recipe that `given` names: one that is shipped, a TOML file, or that of a checkpoint, a folder or a hub id.

    `draft` names the checkpoint of another draft, or of the first. Raises RecipeError for what is none of these.
    """
    shipped, path = shipped_recipes(), Path(given).expanduser()
    if given in shipped or (path.is_file() and not is_gguf(path)) or given.endswith(".toml"):
        recipe = shipped.get(given) or Recipe.load(path)
        return recipe if draft is None else recipe.with_draft(draft)
    if (path / MANIFEST).is_file():
        raise RecipeError(f"checkpoint {given!r}: {what_it_is(path)}")
    if is_checkpoint(path) or is_hub_id(given):
        return Recipe.of_checkpoints(given, draft)
    raise RecipeError(
        f"no recipe and no checkpoint {given!r}: neither a file nor a folder, not a hub id such as org/name, and not "
        f"one of the recipes {', '.join(shipped)}{did_you_mean(given, shipped)}"
    )


def shipped_config(checkpoint: str) -> Path | None:
    """The configuration of a checkpoint that comes with mxspec, or None."""
    name = checkpoint.removeprefix("./").replace("/", "--")
    path = recipes_folder() / "configs" / f"{name}.json"
    return path if path.is_file() else None


def _can_be_had(recipe: Recipe) -> bool:
    models: list[TargetRecipe] = [model for model in (recipe.target, recipe.draft) if model is not None]
    return all(
        is_hub_id(model.checkpoint) or model.unpublished is not None or recipe.has_folder(model.checkpoint)
        for model in models
    )
