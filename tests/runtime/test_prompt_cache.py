"""Prompts that were read before: the same text from a file as from reading; a file that is not right is one line."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mxspec
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.commands.specrun import specrun
from mxspec.runtime.models.read_beginning import read_beginning, write_beginning

PROMPT = list(b"a document that is read once, and asked about many times: ")


def answer(engine: mxspec.Engine, question: bytes, k: int | None = None) -> tuple[list[int], int]:
    handle = engine.generate([*PROMPT, *question], temperature=0, max_new_tokens=24, k=k, cache_key="mine")
    result = handle.result()
    return list(result.token_ids), result.statistics.reused_tokens


@pytest.fixture(scope="module")
def kept(tiny_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "prompt.cache"
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        assert engine.save(PROMPT, path, cache_key="mine") == len(PROMPT)
    assert [one.name for one in path.parent.iterdir()] == ["prompt.cache"]
    return path


@pytest.mark.parametrize("k", [0, 3, None])
def test_texts_after_it_are_the_same_and_read_only_what_follows(
    tiny_bundles: dict[str, Path], kept: Path, k: int | None
) -> None:
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        wanted = [answer(engine, question, k)[0] for question in (b"why?", b"or not?")]
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        assert engine.load(kept) == len(PROMPT)
        found = [answer(engine, question, k) for question in (b"why?", b"or not?")]
        assert [ids for ids, _ in found] == wanted
        assert [reused for _, reused in found] == [len(PROMPT)] * 2
        others = engine.generate([*PROMPT, 63], temperature=0, max_new_tokens=4).result()
        assert others.statistics.reused_tokens == 0  # another cache key


def test_what_a_slot_holds_is_not_read_again_to_be_kept(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        engine.generate([*PROMPT, 63], temperature=0, max_new_tokens=8).result()
        calls: list[int] = []
        run = engine.target.run
        engine.target.run = lambda parts: calls.append(1) or run(parts)  # type: ignore[method-assign, func-returns-value]
        engine.save(PROMPT, tmp_path / "kept")
        assert calls == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "prompt cache .*damaged|prompt cache .*bytes"),
        (lambda data: data[:5000], "prompt cache "),
        (lambda data: data[:-70] + bytes([data[-70] ^ 1]) + data[-69:], "damaged, or not a prompt cache; delete it"),
        (lambda data: b"", "prompt cache "),
        (lambda data: b"x" * 4096, "prompt cache "),
    ],
    ids=["cut", "cut short", "a flipped bit", "empty", "another file"],
)
def test_a_damaged_file_is_one_line(
    tiny_bundles: dict[str, Path], kept: Path, tmp_path: Path, damage: object, message: str
) -> None:
    path = tmp_path / "damaged"
    assert callable(damage)
    path.write_bytes(damage(kept.read_bytes()))
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        with pytest.raises(MxspecError, match=message) as raised:
            engine.load(path)
        assert "\n" not in str(raised.value)
        assert answer(engine, b"why?")[1] == 0  # and nothing of it is used


def test_a_file_of_another_bundle_is_refused(tiny_bundles: dict[str, Path], kept: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_bundles["near"], tmp_path / "other.bundle")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["files"]["draft.safetensors"]["sha256"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    message = r"prompt\.cache: made with another bundle than .*other\.bundle; name a new one"
    with mxspec.Engine(other, slots=2) as engine, pytest.raises(MxspecError, match=message):
        engine.load(kept)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": PROMPT[:-1]}, "key.0: got .* bytes for 57 tokens, expected"),
        ({"tokens": [*PROMPT, 65]}, "key.0: got .* bytes for 59 tokens, expected"),
        ({"tokens": [*PROMPT[:-1], 70000]}, "70000"),
        ({"tokens": [65] * 97}, "97 tokens, more than the context length of 96"),
        ({"draft_length": 59}, "59 tokens that a draft has read, of 58"),
        ({"target": {}}, "got caches of another model"),
    ],
    ids=["fewer tokens", "more tokens", "no token", "too many", "a draft that read more", "no rows"],
)
def test_a_file_that_contradicts_itself_is_one_line(
    tiny_bundles: dict[str, Path], kept: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    bundle, path = Bundle.open(tiny_bundles["near"]), tmp_path / "contradiction"
    write_beginning(path, replace(read_beginning(kept, bundle, "target"), **changes), bundle, "target")
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        with pytest.raises(MxspecError, match=message) as raised:
            engine.load(path)
        assert "\n" not in str(raised.value)
        assert answer(engine, b"why?")[1] == 0


def test_memory_that_is_too_small_is_one_line(tiny_bundles: dict[str, Path], kept: Path) -> None:
    with (
        mxspec.Engine(tiny_bundles["near"], slots=2, cache_memory=4096) as engine,
        pytest.raises(MxspecError, match="no slot is idle, or the cache memory is too small"),
    ):
        engine.load(kept)


def test_a_place_that_cannot_be_written_is_one_line_and_leaves_nothing(
    tiny_bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        with pytest.raises(MxspecError, match=r"prompt cache .*nowhere/kept: cannot be written: No such file or direc"):
            engine.save(PROMPT, tmp_path / "nowhere" / "kept")
        limit = "No space left on device"
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, limit)))
        with pytest.raises(MxspecError, match=re.escape(limit)):
            engine.save(PROMPT, tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_specrun_writes_it_once_and_then_reads_it(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "prompt.cache"
    command = [str(tiny_bundles["near"]), bytes(PROMPT).decode(), "--max-new-tokens", "12", "--prompt-cache", str(path)]
    first = CliRunner().invoke(specrun, command)
    assert (first.exit_code, path.is_file()) == (0, True)
    written = path.stat().st_mtime_ns
    again = CliRunner().invoke(specrun, [command[0], command[1] + "more", *command[2:], "--json"])
    assert again.exit_code == 0, again.output
    assert f'"reused_tokens": {len(PROMPT)}' in again.stdout
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"something else")
    refused = CliRunner().invoke(specrun, command)
    assert refused.exit_code == 1
    assert "prompt cache" in refused.output
