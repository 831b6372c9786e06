"""Find the recipe that a user names: one shipped with mxspec, a file, or one made from a checkpoint."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from mxspec.formats.errors import RecipeError, did_you_mean
from mxspec.formats.file_kind import is_gguf, what_it_is
from mxspec.formats.manifest import MANIFEST
from mxspec.recipes.recipe import Recipe, is_checkpoint, is_hub_id

GGUF = ".gguf"


def recipes_folder() -> Path:
    """The folder of the shipped recipes; its folder `configs` has the configurations of their models."""
    return Path(str(files("mxspec.recipes")))


def shipped_recipes() -> dict[str, Recipe]:
    """The shipped recipes that can be compiled here, by name: a wheel lacks the weights of the demo pair."""
    recipes = {path.stem: Recipe.load(path) for path in sorted(recipes_folder().glob("*.toml"))}
    return {name: recipe for name, recipe in recipes.items() if _is_available(recipe)}


def read_recipe(given: str, draft: str | None = None) -> Recipe:
    """The recipe that `given` names: a shipped one, a TOML file, or one for a checkpoint (a folder or hub id).

    `draft` names the checkpoint of a draft, which replaces the recipe's draft. Raises RecipeError for other names.
    """
    shipped, path = shipped_recipes(), Path(given).expanduser()
    if given in shipped or (path.is_file() and path.suffix != GGUF and not is_gguf(path)) or given.endswith(".toml"):
        recipe = shipped.get(given) or Recipe.load(path)
        return recipe if draft is None else recipe.with_draft(draft)
    if (path / MANIFEST).is_file():
        raise RecipeError(f"checkpoint {given!r}: {what_it_is(path)}")
    if path.suffix == GGUF and path.is_file() and not is_gguf(path):
        raise RecipeError(f"checkpoint {given!r}: {what_it_is(path) or 'it does not begin as a GGUF file does'}")
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


def _is_available(recipe: Recipe) -> bool:
    models = [recipe.source_of(model) for model in (recipe.target, recipe.draft) if model is not None]
    return all(
        is_hub_id(model.checkpoint) or model.unpublished is not None or recipe.has_folder(model.checkpoint)
        for model in models
    )
