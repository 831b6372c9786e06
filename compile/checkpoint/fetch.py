"""Where a checkpoint's files are: a directory, or a copy of a hub repository in the local cache.

The download itself, its progress, going on where it was cut, and HF_HUB_OFFLINE are huggingface_hub's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, file_exists, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mxspec.compile.checkpoint.adapter import ADAPTER_CONFIG
from mxspec.compile.checkpoint.checkpoint import INDEX, WEIGHTS
from mxspec.compile.checkpoint.config import CONFIG
from mxspec.compile.checkpoint.make_tokenizer import TOKENIZER_SOURCES
from mxspec.formats.errors import CheckpointError, RecipeError
from mxspec.formats.manifest import TOKENIZER
from mxspec.formats.validation import parse_json
from mxspec.recipes.recipe import Recipe, TargetRecipe

_DESCRIPTIONS = (
    CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json", "chat_template.jinja", INDEX,
    ADAPTER_CONFIG,
)  # fmt: skip
_COMMIT = re.compile(r"[0-9a-f]{40}")
LOG_IN = "log in with `hf auth login`"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checkpoint's directory, and the commit that it is of where it came from the hub."""

    folder: Path
    commit: str | None = None


def fetch_checkpoint(recipe: Recipe, model: TargetRecipe) -> Fetched:
    """The files of a checkpoint that compiling reads, downloaded where it is a hub id.

    Raises RecipeError or CheckpointError.
    """
    folder = local_folder(recipe, model)
    if folder is not None:
        return Fetched(folder)
    first = _download(model.checkpoint, model.revision, _DESCRIPTIONS)
    if not (first.folder / TOKENIZER).is_file():
        _download(model.checkpoint, first.commit, TOKENIZER_SOURCES)
    if _has_single_file(model.checkpoint, first):
        return _download(model.checkpoint, first.commit, [WEIGHTS])
    return _download(model.checkpoint, first.commit, _shards(first.folder / INDEX))


def fetch_config(recipe: Recipe, model: TargetRecipe) -> Path:
    """The directory with a checkpoint's config.json, downloaded alone where it is a hub id. Raises as above."""
    return local_folder(recipe, model) or _download(model.checkpoint, model.revision, [CONFIG]).folder


def local_folder(recipe: Recipe, model: TargetRecipe) -> Path | None:
    """The directory of a checkpoint, or None for a hub id. Raises RecipeError for neither."""
    try:
        return recipe.local_folder(model.checkpoint)
    except RecipeError:
        if model.unpublished is None:
            raise
        raise RecipeError(f"checkpoint {model.checkpoint!r}: {model.unpublished}") from None


def _download(checkpoint: str, revision: str | None, files: Sequence[str]) -> Fetched:
    """Those of the files that there are, in a directory that has the name of the commit."""
    try:
        folder = Path(snapshot_download(checkpoint, revision=revision, allow_patterns=list(files)))
    except (OSError, HFValidationError) as error:  # the hub's HTTP errors are OSErrors
        raise CheckpointError(f"{checkpoint}: {_reason(checkpoint, revision, error)}") from None
    return Fetched(folder, folder.name if _COMMIT.fullmatch(folder.name) else revision)


def _has_single_file(checkpoint: str, first: Fetched) -> bool:
    """Whether the weights are one file: it goes before an index, as in transformers."""
    if not (first.folder / INDEX).is_file() or (first.folder / WEIGHTS).is_file():
        return True
    try:
        return file_exists(checkpoint, WEIGHTS, revision=first.commit)
    except OSError:  # no network: what is in the cache was chosen when there was one
        return False


def _shards(index: Path) -> list[str]:
    found = parse_json(index.read_bytes(), str(index), CheckpointError)
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index}: no weight_map")
    return sorted({shard for shard in weight_map.values() if isinstance(shard, str)})


def _reason(checkpoint: str, revision: str | None, error: Exception) -> str:
    """Why there is nothing, and what to do, in one line."""
    page, causes = f"{constants.ENDPOINT}/{checkpoint}", (error, error.__cause__)
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return f"gated: accept its conditions at {page}, then {LOG_IN}"
    if any(isinstance(cause, RevisionNotFoundError) for cause in causes):
        return f"the hub has no revision {revision!r} of it; {page} lists its branches and commits"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return f"neither a folder nor a repository of the hub; if it is a private one, {LOG_IN}"
    if constants.HF_HUB_OFFLINE and isinstance(error, LocalEntryNotFoundError):
        return "not in the local cache, and HF_HUB_OFFLINE forbids to fetch it: unset that, or give a folder"
    lines = str(error).strip().splitlines()
    return f"cannot be fetched from the hub: {lines[0] if lines else type(error).__name__}"
