"""Download and open the checkpoint of a recipe's model, with its adapter."""

from __future__ import annotations

from contextlib import ExitStack

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fetch import fetch_adapter, fetch_checkpoint, fetch_config, local_folder
from mxspec.compile.checkpoint.gguf.open_gguf import find_gguf, open_gguf
from mxspec.compile.checkpoint.settings.config import load_config, load_mtp_config
from mxspec.recipes.recipe import Recipe, TargetRecipe, is_mtp

Commits = dict[str, str | None]  # by keys of the recipe


def open_checkpoint(recipe: Recipe, model: TargetRecipe, files: ExitStack) -> tuple[Checkpoint, Commits]:
    """The checkpoint, open until `files` closes, and the commits that were fetched. Raises MxspecError."""
    fetched, adapter = fetch_checkpoint(recipe, recipe.source_of(model)), fetch_adapter(recipe, model)
    adapter_folder = None if adapter is None else adapter.folder
    mtp = is_mtp(model)
    checkpoint = Checkpoint(fetched.folder, adapter_folder, from_pickle=recipe.from_pickle, mtp=mtp)
    commits = {
        "revision": None if mtp else fetched.commit,
        "adapter_revision": None if adapter is None else adapter.commit,
    }
    return files.enter_context(checkpoint), commits


def read_config(recipe: Recipe, model: TargetRecipe) -> PreTrainedConfig:
    """The configuration of a checkpoint, without its weights if they are in other files. Raises MxspecError."""
    given = fetch_config(recipe, recipe.source_of(model))
    load = load_mtp_config if is_mtp(model) else load_config
    with ExitStack() as files:
        gguf = find_gguf(given)
        return load(given if gguf is None else open_gguf(gguf, files).folder)


def hub_ids(recipe: Recipe) -> list[str]:
    """The checkpoints and adapters of a recipe that the hub has, where no folder is."""
    found = []
    for model in (recipe.target, recipe.draft):
        if model is None or is_mtp(model):
            continue
        found += [model.checkpoint] if local_folder(recipe, model) is None else []
        if model.adapter is not None and recipe.local_folder(model.adapter, "adapter") is None:
            found.append(model.adapter)
    return found


def require_folders(recipe: Recipe, model: TargetRecipe) -> None:
    """Raise RecipeError for a missing folder, before any download."""
    local_folder(recipe, recipe.source_of(model))
    if model.adapter is not None:
        recipe.local_folder(model.adapter, "adapter")
