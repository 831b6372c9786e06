"""Where a checkpoint's files are: a directory, or a copy of a hub repository in the local cache."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from mxspec.formats.errors import CheckpointError
from mxspec.recipes.recipe import Recipe

_WANTED = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "model*.safetensors", "model.safetensors.index.json",
]  # fmt: skip


def fetch_checkpoint(recipe: Recipe, checkpoint: str, revision: str | None) -> Path:
    """The directory of a checkpoint, downloaded if it is a hub id. Raises RecipeError or CheckpointError."""
    folder = recipe.local_folder(checkpoint)
    if folder is not None:
        return folder
    try:
        return Path(snapshot_download(checkpoint, revision=revision, allow_patterns=_WANTED))
    except (OSError, HFValidationError) as problem:  # the hub's HTTP errors are OSErrors
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise CheckpointError(f"{checkpoint}: cannot be fetched from the hub: {reason}") from None
