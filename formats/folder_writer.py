"""Writes a folder beside its place and renames it there, so that a half one is never seen under its name.

The work is in DIR.partial, where a start after a kill finds what was done:

  lock        held (flock) by the process that works here
  bundle/     what becomes DIR
  *.journal   how far the file of that name in bundle/ is; without one a file is begun anew
  rounding/   what calibrated rounding, or the training of a head, has done
  old/        what DIR was, where the system cannot exchange two names in one step
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from mxspec.formats.errors import BundleError

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # of renameat2(2), Linux 3.15
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # an old kernel, or a file system that has no such thing

LOCK, BUNDLE, ROUNDING, OLD, JOURNAL = "lock", "bundle", "rounding", "old", ".journal"


class FolderWriter:
    """A folder beside `path` to fill; `publish_with` renames it to `path`, leaving the block without that removes it.

    An existing `path` is refused, or with `force` replaced where `check_replaceable` finds it to be such a folder, in
    words a `kind`. Raises BundleError, also for an OSError that comes up in the block: a disk that is full or fails is
    the user's to mend.
    """

    def __init__(
        self, path: Path, *, kind: str, check_replaceable: Callable[[Path], None], force: bool = False
    ) -> None:
        self.path = path.absolute()
        self.work = self.path.with_name(f"{self.path.name}.partial")
        self.folder = self.work / BUNDLE  # where the files are written
        self.rounding = self.work / ROUNDING
        self.found_work = False  # of a process that was killed
        self._kind, self._check_replaceable, self._force = kind, check_replaceable, force
        self._published = False
        self._lock = -1

    def __enter__(self) -> Self:
        self.check_place()
        try:
            self._begin()
        except BaseException as error:
            self._leave(keep_rounding=True)
            if isinstance(error, OSError):
                raise self._write_error(error) from None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(keep_rounding=not self._published)
        if isinstance(value, OSError):
            raise self._write_error(value) from None

    def journal(self, name: str) -> Path:
        """Where the journal of a file in `folder` is."""
        return self.work / f"{name}{JOURNAL}"

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
        for journal in self.work.glob(f"*{JOURNAL}"):
            journal.unlink()  # they speak of the new files, and here will be old ones
        try:
            self._rename()
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

    def _begin(self) -> None:
        """Lock the work folder, put back what a kill left without a name, and remove what nothing can go on with."""
        self._refuse_strangers()
        self._lock = self._take_lock()
        self.found_work = self.folder.exists() or self.rounding.exists()
        self._recover()
        self.folder.mkdir(exist_ok=True)
        for file in self.folder.iterdir():
            if not self.journal(file.name).is_file():
                _remove(file)

    def _rename(self) -> None:
        """Give `folder` the name `path`; what had that name is in the work folder afterwards."""
        if not os.path.lexists(self.path):
            rename_new(self.folder, self.path)
        elif not exchange(self.folder, self.path):
            try:
                self.path.rename(self.work / OLD)
                self.folder.rename(self.path)
            finally:
                self._recover()

    def _leave(self, *, keep_rounding: bool) -> None:
        """Remove the work folder, but for what rounding has done where that is to be kept."""
        if self._lock < 0:
            return
        with suppress(OSError):  # what a failing disk does not let go is removed by the next start
            self._recover()
            for path in self.work.iterdir():
                if path.name != LOCK and not (keep_rounding and path.name == ROUNDING):
                    _remove(path)
            (self.work / LOCK).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1
        with suppress(OSError):  # rounding is kept, or the next one has come in
            self.work.rmdir()

    def _recover(self) -> None:
        """Give the replaced bundle its name back where a replacement was not finished."""
        old = self.work / OLD
        if old.exists() and not os.path.lexists(self.path):
            old.rename(self.path)

    def _refuse_strangers(self) -> None:
        if not os.path.lexists(self.work):
            return
        if self.work.is_symlink() or not self.work.is_dir():
            raise BundleError(f"{self.work} is needed as a work folder, but speccompile did not make it; move it away")
        for path in self.work.iterdir():
            if path.name not in (LOCK, BUNDLE, ROUNDING, OLD) and path.suffix != JOURNAL:
                raise BundleError(f"{path}: speccompile did not make this file; move it away, {self.work} is needed")

    def _take_lock(self) -> int:
        path = self.work / LOCK
        while True:
            self.work.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:  # the one that worked here has just removed the folder
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise BundleError(
                    f"{self.path} is being written by another speccompile; wait, or choose another place with -o"
                ) from None
            except OSError:  # a file system without locks: alone, as far as anybody can tell
                return lock
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
            os.close(lock)


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that the rename cannot come before it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def rename_new(source: Path, target: Path) -> None:
    """Rename the directory `source` to `target`; raises FileExistsError where that is there already.

    Where the system cannot, rename(2) does it, which replaces nothing but an empty directory by a directory.
    """
    if not _renameat2(source, target, _NOREPLACE):
        try:
            source.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            raise


def exchange(one: Path, other: Path) -> bool:
    """Give each of two directories the other's name, in one step; False where the system cannot, nothing done."""
    return _renameat2(one, other, _EXCHANGE)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Whether the system knows the call; raises OSError where it fails for another reason."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    if library.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(target))
