"""A checkpoint that changes while it is compiled: seen by each way in which files change, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mxspec.compile.checkpoint.tensors.weight_files import Watch
from mxspec.formats.errors import CheckpointError


def replace(path: Path) -> None:
    """As editors and rsync do: another file of the same size and time takes its name."""
    status, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.write_bytes(b"longer than before"), "was changed"),
        (lambda path: os.utime(path, ns=(0, 0)), "was changed"),
        (replace, "was changed"),
        (lambda path: path.unlink(), "was removed"),
        (lambda path: (path.parent / "missing").touch(), "appeared"),
    ],
)
def test_each_change_is_one_line(change: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    path, watch = tmp_path / "model.safetensors", Watch()
    path.write_bytes(b"weights")
    watch.add([path, tmp_path / "missing"])
    path.read_bytes()
    (tmp_path / "log.txt").touch()
    watch.require_unchanged()
    change(path)
    with pytest.raises(CheckpointError, match=f"{says} while it was compiled, so no bundle was written: try again"):
        watch.require_unchanged()
