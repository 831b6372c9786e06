"""Bundles are written beside their place: whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mxspec.formats.bundle import Bundle
from mxspec.formats.bundle_writer import BundleWriter
from mxspec.formats.errors import BundleError
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout, read_header


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_parents_are_made_and_nothing_is_left_beside(tmp_path: Path, small_bundle: Callable[..., Path]) -> None:
    path = small_bundle(tmp_path / "a" / "b" / "small.bundle")
    assert names(path.parent) == ["small.bundle"]
    assert path.stat().st_mode & 0o777 == (tmp_path / "a").stat().st_mode & 0o777


def test_an_existing_bundle_is_refused_before_any_work(bundle_path: Path) -> None:
    with pytest.raises(BundleError, match="--force"), BundleWriter(bundle_path):
        pytest.fail("work was begun")
    assert names(bundle_path.parent) == ["small.bundle"]


def test_force_replaces_a_bundle(bundle_path: Path, small_bundle: Callable[..., Path]) -> None:
    small_bundle(bundle_path, force=True, name="second")
    assert Bundle.open(bundle_path).manifest.name == "second"
    assert names(bundle_path.parent) == ["small.bundle"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_force_replaces_nothing_but_bundles(tmp_path: Path, kind: str, small_bundle: Callable[..., Path]) -> None:
    place = tmp_path / "precious"
    if kind == "folder":
        place.mkdir()
        (place / "thesis.tex").touch()
    elif kind == "file":
        place.touch()
    else:
        place.symlink_to(small_bundle(tmp_path / "a" / "small.bundle"))
    before = names(tmp_path)
    with pytest.raises(BundleError, match="is no bundle"):
        small_bundle(place, force=True)
    assert names(tmp_path) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, BundleError])
def test_nothing_is_left_when_the_work_fails(bundle_path: Path, error: type[BaseException]) -> None:
    def work() -> None:
        with BundleWriter(bundle_path, force=True) as writer:
            (writer.folder / "target.onnx").touch()
            raise error

    with pytest.raises(error):
        work()
    assert names(bundle_path.parent) == ["small.bundle"]
    Bundle.open(bundle_path).verify()


def test_the_old_bundle_returns_when_the_rename_fails(
    bundle_path: Path, small_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if ".partial-" in path.name:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_bundle(bundle_path, force=True, name="second")
    assert names(bundle_path.parent) == ["small.bundle"]
    assert Bundle.open(bundle_path).manifest.name == "small"


def test_a_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    with BundleWriter(tmp_path / "big.bundle") as writer:
        writer.require_space(10**9)
        with pytest.raises(BundleError, match=r"takes 1\.50 GB, the disk has 1\.00 GB free"):
            writer.require_space(1_500_000_000)
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written(tmp_path: Path, small_bundle: Callable[..., Path]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="file"):
        small_bundle(tmp_path / "file" / "x.bundle")


def test_tensors_of_any_size_are_aligned_and_cover_the_file(tmp_path: Path) -> None:
    layout = plan_layout([(f"t{i}", "U8", (i,)) for i in (1, 63, 64, 65, 127, 128)])
    assert len(layout.header) % 64 == 0
    assert all(tensor.offset % 64 == 0 for tensor in layout.tensors if not tensor.is_padding)
    path = tmp_path / "x.safetensors"
    with SafetensorsWriter(path, layout) as writer:
        for tensor in layout.tensors:
            if not tensor.is_padding:
                writer.begin(tensor.name)
                writer.append(bytes(tensor.bytes))
        writer.finish()
    assert path.stat().st_size == layout.file_bytes
    assert list(read_header(path, BundleError).values()) == list(layout.tensors)


def test_the_writer_refuses_disorder(tmp_path: Path) -> None:
    layout = plan_layout([("a", "U8", (4,)), ("b", "U8", (4,))])
    with SafetensorsWriter(tmp_path / "x", layout) as writer:
        writer.begin("a")
        with pytest.raises(AssertionError, match="5 bytes for the 4 left"):
            writer.append(bytes(5))
        writer.append(bytes(3))
        with pytest.raises(AssertionError, match="1 bytes of the tensor before 'b' are missing"):
            writer.begin("b")
        with pytest.raises(AssertionError, match="is missing"):
            writer.finish()
