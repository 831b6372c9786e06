"""Bundles are written beside their place: whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from mxspec.formats import folder_writer
from mxspec.formats.bundle import Bundle, BundleWriter
from mxspec.formats.errors import BundleError
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.generation import GenerationRules
from mxspec.formats.manifest import Manifest
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


@pytest.mark.parametrize("version", [3, 5])
def test_force_replaces_a_bundle_of_another_schema_version(
    bundle_path: Path, version: int, small_bundle: Callable[..., Path]
) -> None:
    """Its reader says "compile the bundle again": to its own place, too. Its keys need not be ours, its files are."""
    manifest = json.loads((bundle_path / "manifest.json").read_text())
    manifest |= {"schema_version": version, "of_another_time": True}
    del manifest["k_max"]
    (bundle_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=f"schema version {version}"):
        Bundle.open(bundle_path)
    (bundle_path / "thesis.tex").touch()
    with pytest.raises(BundleError, match=r"'thesis\.tex' is not in the manifest"):
        small_bundle(bundle_path, force=True)
    (bundle_path / "thesis.tex").unlink()
    small_bundle(bundle_path, force=True, name="second")
    assert Bundle.open(bundle_path).manifest.name == "second"


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
    with pytest.raises(BundleError, match="is not a bundle"):
        small_bundle(place, force=True)
    assert names(tmp_path) == before


@pytest.mark.parametrize("manifest", [b'{"manifest_version": 3, "name": "tab counter"}', b"", None])
def test_force_replaces_no_folder_with_another_programs_manifest(
    bundle_path: Path, manifest: bytes | None, small_bundle: Callable[..., Path]
) -> None:
    """A browser extension beside a thesis; and a whole bundle beside a thesis."""
    (bundle_path / "thesis.tex").write_text("years of work")
    if manifest is not None:
        (bundle_path / "manifest.json").write_bytes(manifest)
    before = names(bundle_path)
    with pytest.raises(BundleError, match=r"is not a bundle: .*; --force replaces only bundles"):
        small_bundle(bundle_path, force=True)
    assert names(bundle_path) == before
    assert names(bundle_path.parent) == ["small.bundle"]


def test_force_replaces_no_bundle_with_a_folder_under_the_name_of_a_file(
    bundle_path: Path, small_bundle: Callable[..., Path]
) -> None:
    (bundle_path / "target.onnx").unlink()
    (bundle_path / "target.onnx").mkdir()
    (bundle_path / "target.onnx" / "thesis.tex").touch()
    with pytest.raises(BundleError, match=r"'target\.onnx' is a folder"):
        small_bundle(bundle_path, force=True)
    assert names(bundle_path / "target.onnx") == ["thesis.tex"]


@pytest.mark.parametrize("system", ["as it is", "old"])
@pytest.mark.parametrize("kind", ["bundle", "file", "link"])
def test_a_file_that_appears_late_is_not_replaced(
    tmp_path: Path, kind: str, system: str, small_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "old":
        monkeypatch.setattr(folder_writer, "_renameat2", lambda source, target, flags: False)
    elsewhere = small_bundle(tmp_path / "other" / "first.bundle", name="first")
    place = tmp_path / "place" / "x.bundle"
    check = BundleWriter.check_place

    def appears(writer: BundleWriter) -> None:
        check(writer)
        if writer.path == place and place.parent.exists():  # the second check, just before the renaming
            if kind == "bundle":
                shutil.copytree(elsewhere, place)
            elif kind == "file":
                place.write_text("precious")
            else:
                place.symlink_to(elsewhere)

    monkeypatch.setattr(BundleWriter, "check_place", appears)
    monkeypatch.setattr(os.path, "lexists", lambda path, real=os.path.lexists: path != place and real(path))
    with pytest.raises(BundleError, match="appeared"):
        small_bundle(place)
    monkeypatch.undo()
    assert names(place.parent) == ["x.bundle"]
    if kind == "file":
        assert place.read_text() == "precious"
    else:
        assert Bundle.open(place).manifest.name == "first"


@pytest.mark.parametrize("error", [KeyboardInterrupt, BundleError])
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
    """Where the system cannot exchange two names, there are two renames, and an interrupt may come between them."""
    monkeypatch.setattr(folder_writer, "exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_bundle(bundle_path, force=True, name="second")
    assert names(bundle_path.parent) == ["small.bundle"]
    assert Bundle.open(bundle_path).manifest.name == "small"


def interrupted(path: Path, target: Path, rename: Callable[[Path, Path], Path] = Path.rename) -> Path:
    if path.name == "bundle":
        raise KeyboardInterrupt
    return rename(path, target)


def test_a_kill_between_two_renames_is_mended_by_the_next_start(
    bundle_path: Path, small_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folder_writer, "exchange", lambda one, other: False)
        patch.setattr(Path, "rename", interrupted)
        for cleanup in ("_recover", "_leave"):  # a killed process does neither
            patch.setattr(FolderWriter, cleanup, lambda *arguments, **options: None)
        with pytest.raises(KeyboardInterrupt):
            small_bundle(bundle_path, force=True, name="second")
        assert not bundle_path.exists()
        close_locks(bundle_path)
    with pytest.raises(BundleError, match="--force"):
        small_bundle(bundle_path)
    assert Bundle.open(bundle_path).manifest.name == "small"
    assert names(bundle_path.parent) == ["small.bundle"]


def close_locks(path: Path) -> None:
    """As the end of a process does."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") == str(path.with_name(f"{path.name}.partial") / "lock"):
                os.close(int(number))


def test_replacing_leaves_no_moment_without_a_bundle(
    bundle_path: Path, small_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exchange, and never a rename that takes the old bundle away first."""
    monkeypatch.setattr(Path, "rename", lambda path, target: pytest.fail(f"{path} was renamed to {target}"))
    small_bundle(bundle_path, force=True, name="second")
    assert Bundle.open(bundle_path).manifest.name == "second"
    assert names(bundle_path.parent) == ["small.bundle"]


def test_one_place_has_one_writer(tmp_path: Path, small_bundle: Callable[..., Path]) -> None:
    place = tmp_path / "x.bundle"
    with BundleWriter(place) as first:
        (first.folder / "half").touch()
        with pytest.raises(BundleError, match="is being written by another speccompile"):
            small_bundle(place)
        assert names(first.folder) == ["half"]
    small_bundle(place)
    assert names(tmp_path) == ["x.bundle"]


def test_the_remains_of_a_killed_run_are_removed(tmp_path: Path, small_bundle: Callable[..., Path]) -> None:
    work = tmp_path / "x.bundle.partial"
    (work / "bundle" / "folder").mkdir(parents=True)
    for name in ("lock", "bundle/target.safetensors", "bundle/manifest.json", "bundle/folder/file"):
        (work / name).write_text("left")
    small_bundle(tmp_path / "x.bundle")
    Bundle.open(tmp_path / "x.bundle").verify()
    assert names(tmp_path) == ["x.bundle"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_strangers_folder_is_not_worked_in(tmp_path: Path, kind: str, small_bundle: Callable[..., Path]) -> None:
    work = tmp_path / "x.bundle.partial"
    if kind == "folder":
        work.mkdir()
        (work / "thesis.tex").touch()
    elif kind == "file":
        work.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        work.symlink_to(tmp_path / "elsewhere")
    before = names(tmp_path)
    with pytest.raises(BundleError, match="move it away"):
        small_bundle(tmp_path / "x.bundle")
    assert names(tmp_path) == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EFBIG])
def test_write_errors_are_one_line_and_leave_nothing(bundle_path: Path, code: int) -> None:
    def write(path: Path) -> None:
        with BundleWriter(path, force=True) as writer:
            (writer.folder / "half").touch()
            raise OSError(code, os.strerror(code), str(writer.folder / "target.onnx"))

    with pytest.raises(BundleError) as caught:
        write(bundle_path)
    assert re.fullmatch(
        rf".*target\.onnx: {os.strerror(code)}; nothing was written to {bundle_path}", str(caught.value)
    )
    assert names(bundle_path.parent) == ["small.bundle"]
    Bundle.open(bundle_path).verify()


def test_a_full_disk_is_reported_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def write_file(path: Path, finished: list[str]) -> tuple[list[str], SafetensorsWriter]:
    """Three tensors, the hash after each."""
    layout = plan_layout([(name, "U8", (70,)) for name in "abc"])
    with SafetensorsWriter(path, layout, finished) as writer:
        hashes = finished[: writer.kept]
        for name in "abc"[writer.kept :]:
            writer.begin(name)
            writer.append(name.encode() * 70)
            hashes.append(writer.sha256)
        assert writer.finish() == hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes, writer


@pytest.mark.parametrize("damaged", [None, "a", "b", "c", "header"])
@pytest.mark.parametrize("length", [None, 0, 5, -1, -65, -200])
def test_an_unfinished_file_is_resumed_as_far_as_it_is_whole(
    tmp_path: Path, damaged: str | None, length: int | None
) -> None:
    path = tmp_path / "x.safetensors"
    hashes, _ = write_file(path, [])
    whole = path.read_bytes()
    content = bytearray(whole)
    ends = {name: whole.rfind(name.encode() * 70) + 70 for name in "abc"}
    if damaged is not None:
        content[ends.get(damaged, 20) - 1] ^= 1
    path.write_bytes(content[:length])
    _, writer = write_file(path, hashes[:2])
    assert path.read_bytes() == whole
    there = len(content[:length])
    intact = [name for name in "ab" if ends[name] <= there]
    expected = {"header": 0, "a": 0, "b": min(1, len(intact))}.get(damaged or "", len(intact))
    assert writer.kept == expected


def test_rules_about_tokens_are_written_where_there_are_any(tmp_path: Path, small_bundle: Callable[..., Path]) -> None:
    manifest = Bundle.open(small_bundle(tmp_path / "a.bundle")).manifest
    assert "generation" not in json.loads(manifest.to_json())
    ruled = manifest.model_copy(update={"generation": GenerationRules(suppressed=(3,), not_applied={"num_beams": 4})})
    assert Manifest.parse(ruled.to_json().encode()) == ruled
