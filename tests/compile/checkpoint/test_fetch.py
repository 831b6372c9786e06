"""Checkpoints from the hub, which is a fake one here: what is asked of it, and what its refusals become."""

from __future__ import annotations

import json
import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants, errors

from mxspec.compile.checkpoint import fetch
from mxspec.compile.checkpoint.fetch import Fetched, fetch_adapter, fetch_checkpoint, fetch_config
from mxspec.formats.errors import CheckpointError, RecipeError
from mxspec.recipes.recipe import Recipe

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
SHARDS = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
USELESS = {"README.md", "model.fp16.safetensors", "pytorch_model.bin", "onnx/model.onnx", "consolidated.safetensors"}
PICKLES = {name.replace("model-", "pytorch_model-").replace("safetensors", "bin") for name in SHARDS}
INDEX, PICKLE_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"


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
                shards = sorted(PICKLES if name == PICKLE_INDEX else SHARDS)
                weight_map = {f"tensor{i}": shard for i, shard in enumerate(shards)}
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_text(json.dumps({"weight_map": weight_map}))
        return str(self.folder)

    def file_exists(self, repository: str, name: str, *, revision: str | None) -> bool:
        assert (repository, revision) == ("org/model", COMMIT)
        return name in self.files

    def list_repo_files(self, repository: str, *, revision: str | None) -> list[str]:
        assert (repository, revision) == ("org/model", COMMIT)
        return list(self.files)

    @property
    def fetched(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "cache", SMALL | USELESS)
    monkeypatch.setattr(fetch, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(fetch, "file_exists", made.file_exists)
    monkeypatch.setattr(fetch, "list_repo_files", made.list_repo_files)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return made


def recipe(checkpoint: str = "org/model", *, from_pickle: bool = False, **model: str) -> Recipe:
    return Recipe.of_checkpoints(checkpoint).with_changes(from_pickle=from_pickle, target=model)


def fetched(**settings: Any) -> Fetched:
    return fetch_checkpoint(recipe(**settings), recipe(**settings).target)


def refused(**settings: Any) -> str:
    with pytest.raises((CheckpointError, RecipeError)) as caught:
        fetched(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("weights", "needed"),
    [
        ({"model.safetensors"}, {"model.safetensors"}),
        (SHARDS | {INDEX}, SHARDS | {INDEX}),
        # A single file goes before an index, as in transformers.
        ({"model.safetensors", INDEX} | SHARDS, {"model.safetensors"}),
    ],
)
def test_only_what_compiling_reads_is_fetched_of_one_commit(hub: Hub, weights: set[str], needed: set[str]) -> None:
    hub.files |= weights
    assert fetched(revision="v1") == Fetched(hub.folder, COMMIT)
    assert hub.fetched - {INDEX} == SMALL | needed - {INDEX}
    assert hub.revisions == ["v1", COMMIT]


@pytest.mark.parametrize(
    ("weights", "needed"),
    [
        ({"pytorch_model.bin"}, {"pytorch_model.bin"}),
        (PICKLES | {PICKLE_INDEX}, PICKLES | {PICKLE_INDEX}),
        ({"model.safetensors", "pytorch_model.bin"}, {"model.safetensors"}),
        (SHARDS | {INDEX, PICKLE_INDEX} | PICKLES, SHARDS | {INDEX, PICKLE_INDEX}),
    ],
)
def test_pickles_are_fetched_where_there_is_nothing_else_and_they_are_asked_for(
    hub: Hub, weights: set[str], needed: set[str]
) -> None:
    hub.files = SMALL | weights
    assert fetched(from_pickle=True) == Fetched(hub.folder, COMMIT)
    assert hub.fetched == SMALL | needed


@pytest.mark.parametrize("weights", [{"pytorch_model.bin"}, PICKLES | {PICKLE_INDEX}])
def test_pickles_are_not_fetched_unasked(hub: Hub, weights: set[str]) -> None:
    hub.files = SMALL | weights
    said = refused()
    assert said.startswith("org/model: pickled weights only")
    assert "--from-pickle" in said
    assert not any(name.endswith(".bin") for name in hub.fetched)


def adapter(checkpoint: str = "org/base", *, from_pickle: bool = False, **model: str) -> Fetched | None:
    made = recipe(checkpoint, from_pickle=from_pickle, adapter="org/model", **model)
    return fetch_adapter(made, made.target)


def test_an_adapter_is_fetched_of_one_commit(hub: Hub, tmp_path: Path) -> None:
    files = {"adapter_config.json", "adapter_model.safetensors"}
    hub.files = files | {"README.md", "adapter_model.bin", "tokenizer.json"}
    assert adapter(adapter_revision="v1") == Fetched(hub.folder, COMMIT)
    assert (hub.fetched, hub.revisions) == (files, ["v1"])
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert adapter() == Fetched(tmp_path / "org" / "model")
    assert fetch_adapter(recipe(), recipe().target) is None


def test_a_pickled_adapter_is_fetched_where_it_is_asked_for(hub: Hub) -> None:
    hub.files = {"adapter_config.json", "adapter_model.bin"}
    with pytest.raises(CheckpointError, match=r"org/model: pickled weights only.*--from-pickle"):
        adapter()
    assert hub.fetched == {"adapter_config.json"}
    assert adapter(from_pickle=True) == Fetched(hub.folder, COMMIT)
    assert hub.fetched == hub.files


def test_only_the_configuration_is_fetched(hub: Hub) -> None:
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


def test_offline_means_only_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.fails = errors.LocalEntryNotFoundError("Cannot find an appropriate cached snapshot folder")
    assert refused() == (
        "org/model: not in the local cache, and HF_HUB_OFFLINE forbids to fetch it: unset that, or give a folder"
    )
    hub.fails = None
    hub.files |= SHARDS | {INDEX}

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


GGUF = {"README.md", "m.Q4_K_M.gguf", "m.Q8_0.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"}


def test_one_gguf_file_is_fetched_by_its_name(hub: Hub) -> None:
    hub.files = GGUF
    fetched = fetch_checkpoint(recipe("org/model:m.Q8_0.gguf"), recipe("org/model:m.Q8_0.gguf").target)
    assert fetched == Fetched(hub.folder / "m.Q8_0.gguf", COMMIT)
    assert hub.fetched == {"m.Q8_0.gguf"}


def test_shards_are_fetched_together(hub: Hub) -> None:
    hub.files = GGUF
    wanted = recipe("org/model:big-00001-of-00002.gguf")
    assert fetch_checkpoint(wanted, wanted.target).folder == hub.folder / "big-00001-of-00002.gguf"
    assert hub.fetched == {"big-00001-of-00002.gguf", "big-00002-of-00002.gguf"}


def test_gguf_files_of_a_repository_are_named(hub: Hub) -> None:
    hub.files = GGUF
    with pytest.raises(CheckpointError, match=r"name one of 3, such as org/model:big-00001-of-00002\.gguf") as caught:
        fetch_checkpoint(recipe(), recipe().target)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"has no file 'other\.gguf'"):
        fetch_checkpoint(recipe("org/model:other.gguf"), recipe("org/model:other.gguf").target)


def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that takes the connection and says nothing, as behind some portals: huggingface_hub waits for ever."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(fetch, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert refused(checkpoint="org/never-cached").startswith("org/never-cached: cannot be fetched from the hub: ")
    request = httpx2.Request("GET", "http://x", extensions={"timeout": {"connect": None, "read": 7.0}})
    fetch._bound(request)
    assert request.extensions["timeout"] == {"connect": 5.0, "read": 7.0}
