"""Writes a bundle beside its place and renames it there, so that a half bundle is never seen under its name."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from mxspec.formats.bundle import file_sha256
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import MANIFEST, FileEntry, Manifest


class BundleWriter:
    """A folder beside `path` to fill; `publish` renames it to `path`, leaving the `with` block without that removes it.

    An existing `path` is refused, or with `force` replaced by `publish` if it is a bundle. Raises BundleError.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path.absolute()
        self._force = force
        self.folder = self.path  # set by __enter__

    def __enter__(self) -> Self:
        self._check_place()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.partial-", dir=self.path.parent))
            self.folder.chmod(0o777 & ~_umask())  # mkdtemp's 0700 would stay on the finished bundle
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
                f"{self.path}: the bundle takes {bytes_needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB free; "
                "make room or choose another place with -o"
            )

    def entry(self, name: str, sha256: str | None = None) -> FileEntry:
        """Size and hash of a file written to the folder; it is hashed here unless the hash is known."""
        path = self.folder / name
        return FileEntry(bytes=path.stat().st_size, sha256=sha256 or file_sha256(path))

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, flush, and rename the folder to its place, over an old bundle only now."""
        with (self.folder / MANIFEST).open("x") as file:
            file.write(manifest.to_json())
        for path in (*self.folder.iterdir(), self.folder):
            _flush(path)
        self._check_place()
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

    def _check_place(self) -> None:
        if not self.path.exists() and not self.path.is_symlink():
            return
        if not self._force:
            raise BundleError(f"{self.path} exists; choose another place with -o, or replace it with --force")
        if self.path.is_symlink() or not (self.path / MANIFEST).is_file():
            raise BundleError(f"{self.path} exists and is no bundle; --force replaces only bundles")


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
