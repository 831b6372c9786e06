"""Writes a folder beside its place and renames it there, so that a half one is never seen under its name."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from mxspec.formats.errors import BundleError


class FolderWriter:
    """A folder beside `path` to fill; `publish` renames it to `path`, leaving the `with` block without that removes it.

    An existing `path` is refused, or with `force` replaced by `publish` if it holds the file `marker`: if it is such
    a folder, in words a `kind`. Raises BundleError.
    """

    def __init__(self, path: Path, *, marker: str, kind: str, force: bool = False) -> None:
        self.path = path.absolute()
        self._marker, self._kind, self._force = marker, kind, force
        self.folder = self.path  # set by __enter__

    def __enter__(self) -> Self:
        self.check_place()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.partial-", dir=self.path.parent))
            self.folder.chmod(0o777 & ~_umask())  # mkdtemp's 0700 would stay on the finished folder
        except OSError as problem:
            raise BundleError(f"{self.path}: {problem.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.folder != self.path:
            shutil.rmtree(self.folder, ignore_errors=True)

    def require_space(self, bytes_needed: int) -> None:
        """Raise BundleError unless the disk has room for `bytes_needed`."""
        free = shutil.disk_usage(self.folder).free
        if free < bytes_needed:
            raise BundleError(
                f"{self.path}: the {self._kind} takes {bytes_needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB "
                "free; make room or choose another place with -o"
            )

    def publish_with(self, text: str) -> None:
        """Write the marker file, flush, and rename the folder to its place, over an old one only now."""
        with (self.folder / self._marker).open("x") as file:
            file.write(text)
        for path in (*self.folder.iterdir(), self.folder):
            _flush(path)
        self.check_place()
        retired = self.folder.with_name(self.folder.name.replace(".partial-", ".old-"))
        replaces = self.path.exists()
        try:
            if replaces:
                self.path.rename(retired)
            self.folder.rename(self.path)
        except BaseException:
            if retired.exists() and not self.path.exists():
                retired.rename(self.path)
            raise
        self.folder = self.path
        _flush(self.path.parent)
        if replaces:
            shutil.rmtree(retired, ignore_errors=True)

    def check_place(self) -> None:
        """Raise BundleError where something lies at `path` that may not be replaced."""
        if not self.path.exists() and not self.path.is_symlink():
            return
        if not self._force:
            raise BundleError(f"{self.path} exists; choose another place with -o, or replace it with --force")
        if self.path.is_symlink() or not (self.path / self._marker).is_file():
            raise BundleError(f"{self.path} exists and is no {self._kind}; --force replaces only {self._kind}s")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that the rename cannot come before it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
