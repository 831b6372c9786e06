"""speccompile --rounding, from recipe to manifest, bytes and report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mxspec.compile.weights.rounding import round_model
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import UnsupportedModelError
from tests.compile.commands.test_speccompile import done, speccompile, write_pair, write_words


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a pair, and beside it text.txt."""
    folder = tmp_path_factory.mktemp("pair")
    write_words(folder / "text.txt", 800)
    return write_pair(folder, "gpt2")


def compiled(pair: Path, output: Path, *options: object) -> dict[str, Any]:
    text = pair.parent / "text.txt"
    result = done(pair, "-o", output, "--rounding", "gptq", "--calibrate", text, "--json", *options)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_gptq_is_recorded_and_keeps_the_bytes_plain(pair: Path, tmp_path: Path) -> None:
    report = compiled(pair, tmp_path / "careful.bundle", "--calibration-tokens", "320", "--seed", "3")
    text = (pair.parent / "text.txt").read_bytes()
    rounding = report["models"]["target"]["rounding"]
    assert rounding.pop("tokens") == 320
    assert rounding == {
        "method": "gptq",
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "seed": 3,
        "damping": 0.01,
        "nearest": {},
        "few": {},
    }
    assert report["models"]["draft"]["rounding"] is None  # its matrices are fp16
    assert [path.name for path in tmp_path.iterdir()] == ["careful.bundle"]  # nothing is left beside it
    assert speccompile(pair, "-o", tmp_path / "plain.bundle").exit_code == 0
    careful, plain = (Bundle.open(tmp_path / f"{name}.bundle").manifest for name in ("careful", "plain"))
    assert plain.models["target"].rounding is None
    for ours, theirs in zip(careful.models["target"].tensors, plain.models["target"].tensors, strict=True):
        assert (ours.name, ours.format, ours.shape, ours.offset, ours.bytes, ours.sources, ours.source_bytes) == (
            (theirs.name, theirs.format, theirs.shape, theirs.offset, theirs.bytes, theirs.sources, theirs.source_bytes)
        )
        if ours.format == "mxfp6_e2m3":  # further from the checkpoint, nearer in what comes out
            assert ours.error is not None
            assert theirs.error is not None
            assert theirs.error < ours.error < 3 * theirs.error


def test_scale_needs_no_text(pair: Path, tmp_path: Path) -> None:
    result = done(pair, "-o", tmp_path / "a.bundle", "--rounding", "scale")
    assert "best of three scales a block" in result.output
    assert speccompile(pair, "-o", tmp_path / "b.bundle").exit_code == 0
    careful, plain = (Bundle.open(tmp_path / f"{name}.bundle").manifest.models["target"] for name in "ab")
    assert careful.rounding is not None
    assert careful.rounding.method == "scale"
    for ours, theirs in zip(careful.tensors, plain.tensors, strict=True):
        if ours.format == "mxfp6_e2m3":
            assert ours.error is not None
            assert theirs.error is not None
            assert ours.error <= theirs.error


def test_a_model_that_is_not_understood_is_rounded_to_nearest_by_name(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise UnsupportedModelError("GPT2LMHeadModel: no list of its 2 decoder layers was found")

    monkeypatch.setattr(round_model, "LayeredModel", refuse)
    text = pair.parent / "text.txt"
    result = done(pair, "-o", tmp_path / "a.bundle", "--rounding", "gptq", "--calibrate", text)
    assert "transformer.h.0.attn.c_attn.weight was rounded to nearest: GPT2LMHeadModel: no list" in result.output


@pytest.mark.parametrize(
    ("content", "message", "at_once"),
    [(None, "No such file", True), (b"\xff\xfe", "not text in UTF-8", True), (b"", "fewer than 2 tokens", False)],
)
def test_texts_that_cannot_be_used(
    pair: Path, tmp_path: Path, content: bytes | None, message: str, at_once: bool
) -> None:
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    result = speccompile(pair, "-o", tmp_path / "a.bundle", "--rounding", "gptq", "--calibrate", text)
    assert result.exit_code == 1
    assert message in result.output
    assert ("referee" not in result.output) == at_once
    assert not (tmp_path / "a.bundle").exists()


def test_gptq_without_a_text_uses_what_the_model_writes(pair: Path, tmp_path: Path) -> None:
    result = speccompile(pair, "-o", tmp_path / "a.bundle", "--rounding", "gptq", "--calibration-tokens", 128, "--json")
    assert result.exit_code == 0, result.output
    rounding = json.loads(result.stdout)["models"]["target"]["rounding"]
    assert (rounding["text_sha256"], rounding["tokens"]) == (None, 128)
