"""Find the files of a checkpoint or an adapter: a directory, or a copy of a hub repository in the local cache.

huggingface_hub does the download, shows progress, resumes, and obeys HF_HUB_OFFLINE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import constants, file_exists, get_session, list_repo_files, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mxspec.compile.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_PICKLE, ADAPTER_WEIGHTS
from mxspec.compile.checkpoint.gguf.open_gguf import shard_pattern
from mxspec.compile.checkpoint.make_tokenizer import TOKENIZER_SOURCES
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.tensors.weight_files import (
    PICKLES,
    PICKLES_ADVICE,
    SAFETENSORS,
    WeightKind,
    kinds_to_read,
    read_index,
)
from mxspec.formats.errors import CheckpointError, RecipeError
from mxspec.formats.manifest import TOKENIZER
from mxspec.recipes.recipe import Recipe, TargetRecipe

DESCRIPTIONS = (
    CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json", "chat_template.jinja", SAFETENSORS.index,
    PICKLES.index, ADAPTER_CONFIG,
)  # fmt: skip
_COMMIT = re.compile(r"[0-9a-f]{40}")
CONNECT_SECONDS, ANSWER_SECONDS = (
    5.0,
    30.0,
)  # for a connection to the hub, and an answer without a limit of its own
LOG_IN = "log in with `hf auth login`"


@dataclass(frozen=True, slots=True)
class Fetched:
    """The directory of a checkpoint or an adapter, or a GGUF file; with its commit if it came from the hub."""

    folder: Path
    commit: str | None = None


def fetch_checkpoint(recipe: Recipe, model: TargetRecipe) -> Fetched:
    """The files of a checkpoint that compiling reads, downloaded if it is a hub id.

    Raises RecipeError or CheckpointError.
    """
    folder = local_folder(recipe, model)
    if folder is not None:
        return Fetched(folder)
    repository, _, file = model.checkpoint.partition(":")
    if file:
        return _fetch_gguf(repository, file, model.revision)
    first = _download(model.checkpoint, model.revision, DESCRIPTIONS)
    if not (first.folder / CONFIG).is_file() and (names := _gguf_files(model.checkpoint, first.commit)):
        raise CheckpointError(
            f"{model.checkpoint}: has GGUF files and no {CONFIG}; name one of {len(names)}, such as "
            f"{model.checkpoint}:{names[0]}"
        )
    if not (first.folder / TOKENIZER).is_file():
        _download(model.checkpoint, first.commit, TOKENIZER_SOURCES)
    return _download(model.checkpoint, first.commit, _weight_files(model.checkpoint, first, recipe.from_pickle))


def fetch_adapter(recipe: Recipe, model: TargetRecipe) -> Fetched | None:
    """The files of a model's adapter, if it has one, downloaded if it is a hub id. Raises as fetch_checkpoint."""
    if model.adapter is None:
        return None
    folder = recipe.local_folder(model.adapter, "adapter")
    if folder is not None:
        return Fetched(folder)
    first = _download(model.adapter, model.adapter_revision, [ADAPTER_CONFIG, ADAPTER_WEIGHTS])
    if not (first.folder / ADAPTER_WEIGHTS).is_file() and _is_published(model.adapter, ADAPTER_PICKLE, first.commit):
        if not recipe.from_pickle:
            raise CheckpointError(f"{model.adapter}: {PICKLES_ADVICE}")
        return _download(model.adapter, first.commit, [ADAPTER_PICKLE])
    return first


def fetch_config(recipe: Recipe, model: TargetRecipe) -> Path:
    """The directory with a checkpoint's config.json; of a hub repository only this file is downloaded.

    A GGUF file is downloaded whole. Raises as fetch_checkpoint.
    """
    folder = local_folder(recipe, model)
    if folder is not None:
        return folder
    repository, _, file = model.checkpoint.partition(":")
    if file:
        return _fetch_gguf(repository, file, model.revision).folder
    return _download(model.checkpoint, model.revision, [CONFIG]).folder


def local_folder(recipe: Recipe, model: TargetRecipe) -> Path | None:
    """The directory of a checkpoint, or None for a hub id. Raises RecipeError for neither."""
    try:
        return recipe.local_folder(model.checkpoint)
    except RecipeError:
        if model.unpublished is None:
            raise
        raise RecipeError(f"checkpoint {model.checkpoint!r}: {model.unpublished}") from None


def _download(checkpoint: str, revision: str | None, files: Sequence[str]) -> Fetched:
    """Download those of the files that exist, into a directory with the name of the commit."""
    hooks = get_session().event_hooks["request"]
    if _bound not in hooks:
        hooks.append(_bound)
    try:
        folder = Path(snapshot_download(checkpoint, revision=revision, allow_patterns=list(files)))
    except (OSError, HFValidationError) as error:  # the hub's HTTP errors are OSErrors
        raise CheckpointError(f"{checkpoint}: {_reason(checkpoint, revision, error)}") from None
    return Fetched(folder, folder.name if _COMMIT.fullmatch(folder.name) else revision)


def _bound(request: httpx2.Request) -> None:
    """Give a request limits of time: huggingface_hub asks what a repository holds without any."""
    limits = request.extensions.setdefault("timeout", {})
    limits["connect"] = CONNECT_SECONDS
    limits["read"] = limits.get("read") or ANSWER_SECONDS


def _fetch_gguf(repository: str, file: str, revision: str | None) -> Fetched:
    """One GGUF file of a repository, with the other shards of its model."""
    fetched = _download(repository, revision, [shard_pattern(file)])
    path = fetched.folder / file
    if not path.is_file():
        raise CheckpointError(
            f"{repository}: has no file {file!r}; its page lists its files: {constants.ENDPOINT}/{repository}"
        )
    return Fetched(path, fetched.commit)


def _gguf_files(repository: str, commit: str | None) -> list[str]:
    """The GGUF files of a repository, without later shards; empty if the hub cannot be reached."""
    try:
        names = list_repo_files(repository, revision=commit)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".gguf") and "-of-" not in name.replace("-00001-of-", ""))


def _weight_files(checkpoint: str, first: Fetched, from_pickle: bool) -> list[str]:
    """Names of the files with the weights; safetensors are preferred, pickles are read only with `from_pickle`."""
    for kind in kinds_to_read(from_pickle):
        if files := _files_of(kind, checkpoint, first):
            return files
    if not from_pickle and _files_of(PICKLES, checkpoint, first):
        raise CheckpointError(f"{checkpoint}: {PICKLES_ADVICE}")
    return [SAFETENSORS.single]  # opening the folder reports missing files


def _files_of(kind: WeightKind, checkpoint: str, first: Fetched) -> list[str]:
    """The files of a kind; a single file is preferred to an index, as in transformers."""
    index = first.folder / kind.index
    if (first.folder / kind.single).is_file() or _is_published(checkpoint, kind.single, first.commit):
        return [kind.single]
    return sorted(read_index(index)) if index.is_file() else []


def _is_published(checkpoint: str, name: str, commit: str | None) -> bool:
    """Whether the hub has a file."""
    try:
        return file_exists(checkpoint, name, revision=commit)
    except OSError:  # no network: the files in the cache were chosen when there was one
        return False


def _reason(checkpoint: str, revision: str | None, error: Exception) -> str:
    """Why the download failed, and what to do, in one line."""
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
