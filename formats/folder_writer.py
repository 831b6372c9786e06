"""Writes a folder beside its place and renames it there, so that a half one is never seen under its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from mxspec.formats.errors import BundleError
from mxspec.formats.work_folder import WorkFolder


class FolderWriter:
    """A folder beside `path` to fill; `publish` renames it to `path`, leaving the `with` block without that removes it.

    An existing `path` is refused, or with `force` replaced by `publish` where `check_replaceable` finds it to be such
    a folder, in words a `kind`. Raises BundleError, also for an OSError that comes up in the block: a disk that is full
    or fails is the user's to mend.
    """

    def __init__(
        self, path: Path, *, kind: str, check_replaceable: Callable[[Path], None], force: bool = False
    ) -> None:
        self.path = path.absolute()
        self._kind, self._check_replaceable, self._force = kind, check_replaceable, force
        self._published = False

    def __enter__(self) -> Self:
        self.check_place()
        self._work = WorkFolder(self.path)
        try:
            self._work.enter()
        except OSError as error:
            self._work.leave(keep_rounding=True)
            raise self._write_error(error) from None
        except BaseException:
            self._work.leave(keep_rounding=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.leave(keep_rounding=not self._published)
        if isinstance(value, OSError):
            raise self._write_error(value) from None

    @property
    def folder(self) -> Path:
        """Where the files are written."""
        return self._work.bundle

    @property
    def work(self) -> WorkFolder:
        """What stands beside the files while they are made."""
        return self._work

    def require_space(self, bytes_needed: int) -> None:
        """Raise BundleError unless the disk has room for `bytes_needed`."""
        bytes_needed -= sum(file.stat().st_size for file in self.folder.iterdir())  # of a run that was killed
        free = shutil.disk_usage(self.folder).free
        if free < bytes_needed:
            raise BundleError(
                f"{self.path}: the {self._kind} takes {bytes_needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB "
                "free; make room or choose another place with -o"
            )

    def publish_with(self, name: str, text: str) -> None:
        """Write a last file of this text, flush, and rename the folder to its place, over an old one only now.

        Its files can be read by whoever can read the folder; safetensors makes them for their owner alone.
        """
        with (self.folder / name).open("xb") as file:
            file.write(text.encode())
        readable = self.folder.stat().st_mode & 0o666
        for path in self.folder.iterdir():
            if path.is_file():
                path.chmod(readable)
        for path in (*self.folder.iterdir(), self.folder):
            _flush(path)
        self.check_place()
        try:
            self._work.publish(replace=os.path.lexists(self.path))
        except FileExistsError:
            raise BundleError(
                f"{self.path} appeared while the {self._kind} was made; choose another place with -o"
            ) from None
        self._published = True
        _flush(self.path.parent)

    def check_place(self) -> None:
        """Raise BundleError where something lies at `path` that may not be replaced."""
        if not os.path.lexists(self.path):
            return
        if not self._force:
            raise BundleError(f"{self.path} exists; choose another place with -o, or replace it with --force")
        self._check_replaceable(self.path)

    def _write_error(self, error: OSError) -> BundleError:
        where = error.filename2 or error.filename or self.path  # the second is where a copy goes
        return BundleError(f"{where}: {error.strerror or error}; nothing was written to {self.path}")


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that the rename cannot come before it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
