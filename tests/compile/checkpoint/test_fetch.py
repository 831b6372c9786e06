"""Checkpoints from the hub, which is a fake one here: what is asked of it, and what its refusals become."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import constants, errors

from mxspec.compile.checkpoint import fetch
from mxspec.compile.checkpoint.fetch import Fetched, fetch_checkpoint, fetch_config
from mxspec.formats.errors import CheckpointError, RecipeError
from mxspec.recipes.recipe import Recipe

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
SHARDS = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
USELESS = {"README.md", "model.fp16.safetensors", "pytorch_model.bin", "onnx/model.onnx", "consolidated.safetensors"}


class Hub:
    """One repository with some files, and a cache."""

    def __init__(self, cache: Path, files: set[str]) -> None:
        self.folder = cache / "snapshots" / COMMIT
        self.files = files
        self.revisions: list[str | None] = []
        self.fails: Exception | None = None

    def snapshot_download(self, repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert repository == "org/model"
        if self.fails is not None:
            raise self.fails
        self.revisions.append(revision)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            if any(fnmatchcase(name, pattern) for pattern in allow_patterns):
                weight_map = {f"tensor{i}": shard for i, shard in enumerate(sorted(SHARDS))}
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_text(json.dumps({"weight_map": weight_map}))
        return str(self.folder)

    def file_exists(self, repository: str, name: str, *, revision: str | None) -> bool:
        assert (repository, revision) == ("org/model", COMMIT)
        return name in self.files

    @property
    def fetched(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "cache", SMALL | USELESS)
    monkeypatch.setattr(fetch, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(fetch, "file_exists", made.file_exists)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return made


def recipe(revision: str | None = None, unpublished: str | None = None, checkpoint: str = "org/model") -> Recipe:
    return Recipe.of_checkpoints(checkpoint).with_changes(
        target={"revision": revision, "unpublished": unpublished},
    )


def fetched(**model: str) -> Fetched:
    return fetch_checkpoint(recipe(**model), recipe(**model).target)


def refused(**model: str) -> str:
    with pytest.raises((CheckpointError, RecipeError)) as caught:
        fetched(**model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("weights", "needed"),
    [
        ({"model.safetensors"}, {"model.safetensors"}),
        (SHARDS | {"model.safetensors.index.json"}, SHARDS | {"model.safetensors.index.json"}),
        # A single file goes before an index, as in transformers.
        ({"model.safetensors", "model.safetensors.index.json"} | SHARDS, {"model.safetensors"}),
    ],
)
def test_only_what_compiling_reads_is_fetched_of_one_commit(hub: Hub, weights: set[str], needed: set[str]) -> None:
    hub.files |= weights
    assert fetched(revision="v1") == Fetched(hub.folder, COMMIT)
    assert hub.fetched - {"model.safetensors.index.json"} == SMALL | needed - {"model.safetensors.index.json"}
    assert hub.revisions == ["v1", COMMIT]


def test_a_configuration_is_fetched_alone(hub: Hub) -> None:
    hub.files.add("model.safetensors")
    assert fetch_config(recipe(), recipe().target) == hub.folder
    assert hub.fetched == {"config.json"}


def test_a_folder_goes_before_the_hub(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert fetched() == Fetched(tmp_path / "org" / "model")
    assert fetched(revision="v1").commit is None
    assert hub.revisions == []


def test_a_folder_that_was_never_published_says_so(hub: Hub) -> None:
    said = refused(checkpoint="./draft", unpublished="train it, then --draft FOLDER")
    assert said == "checkpoint './draft': train it, then --draft FOLDER"
    assert hub.revisions == []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (errors.GatedRepoError, "gated: accept its conditions at https://huggingface.co/org/model, then log in with"),
        (errors.RevisionNotFoundError, "the hub has no revision 'v1' of it"),
        (
            errors.RepositoryNotFoundError,
            "neither a folder nor a repository of the hub; if it is a private one, log in",
        ),
        (errors.HfHubHTTPError, "cannot be fetched from the hub: 50"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_refusals_say_what_to_do(
    hub: Hub, kind: type[errors.HfHubHTTPError], says: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    response = httpx2.Response(503, request=httpx2.Request("GET", "https://huggingface.co/org/model"))
    error: Exception = kind("503 of the hub\nand more lines", response=response)
    if wrapped:  # as snapshot_download does with errors of single files
        outer = errors.LocalEntryNotFoundError("503 of the hub")
        outer.__cause__ = error
        error = outer
    hub.fails = error
    assert refused(revision="v1").startswith(f"org/model: {says}")


def test_offline_means_the_cache_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.fails = errors.LocalEntryNotFoundError("Cannot find an appropriate cached snapshot folder")
    assert refused() == (
        "org/model: not in the local cache, and HF_HUB_OFFLINE forbids to fetch it: unset that, or give a folder"
    )
    hub.fails = None
    hub.files |= SHARDS | {"model.safetensors.index.json"}

    def no_network(*_: object, **__: object) -> bool:
        raise errors.OfflineModeIsEnabled("no")

    monkeypatch.setattr(fetch, "file_exists", no_network)
    assert fetched().commit == COMMIT
    assert hub.fetched >= SHARDS


def test_offline_with_the_hubs_own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in its cache is found by branch, without a word to the network; what is not is one line."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    assert fetched() == Fetched(snapshot, COMMIT)
    assert fetched(revision=COMMIT) == Fetched(snapshot, COMMIT)
    assert "not in the local cache" in refused(revision="other")
    assert "not in the local cache" in refused(checkpoint="org/other")
