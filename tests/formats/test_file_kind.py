"""What was given in the place of something else is said by what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mxspec.compile.commands.speccompile import main
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, CheckpointError
from mxspec.formats.file_kind import what_it_is
from mxspec.formats.safetensors_file import read_header

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
GIVEN = {
    "model.gguf": (b"GGUF\3\0\0\0", "a GGUF file: compile it with speccompile"),
    "model.safetensors": (b"\2\0\0\0\0\0\0\0{}", "a lone safetensors file: give the folder that holds it"),
    "pointer.safetensors": (POINTER, "a git-lfs pointer, and not the file itself"),
    "model.bin": (b"PK\3\4", "--from-pickle"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_bundle_is_asked_for(tmp_path: Path, name: str) -> None:
    data, message = GIVEN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BundleError) as caught:
        Bundle.open(tmp_path / name)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [name for name in GIVEN if not name.endswith(".gguf")])
def test_a_recipe_is_asked_for(tmp_path: Path, name: str) -> None:
    data, message = GIVEN[name]
    (tmp_path / name).write_bytes(data)
    done = CliRunner().invoke(main, [str(tmp_path / name)])
    assert done.exit_code == 1
    assert message in done.output.replace("\n", " ")


def test_a_bundle_in_the_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 1
    assert "it is a bundle, which is compiled already: run it with specrun" in done.output.replace("\n", " ")


def test_a_checkpoint_in_the_place_of_a_bundle_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BundleError, match="it is a checkpoint: compile it with speccompile"):
        Bundle.open(tmp_path)


def test_a_pointer_is_no_damaged_safetensors_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match="git-lfs pointer"):
        read_header(tmp_path / "x", CheckpointError)


def test_an_unknown_kind_of_file_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"name = 'x'\n")
    assert what_it_is(tmp_path / "x") is None
    assert what_it_is(tmp_path) is None
    assert what_it_is(tmp_path / "missing") is None
