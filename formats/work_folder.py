"""The folder beside a bundle's place where the bundle is made, so that a start after a kill finds what was done.

DIR.partial/
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
from contextlib import suppress
from pathlib import Path

from mxspec.formats.errors import BundleError

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # of renameat2(2), Linux 3.15
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # an old kernel, or a file system that has no such thing

LOCK, BUNDLE, ROUNDING, OLD, JOURNAL = "lock", "bundle", "rounding", "old", ".journal"


class WorkFolder:
    """DIR.partial for the bundle `place`, one process's alone from `enter` to `leave`; raises BundleError, OSError."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.path = place.with_name(f"{place.name}.partial")
        self.bundle = self.path / BUNDLE
        self.rounding = self.path / ROUNDING
        self.found_work = False  # of a process that was killed
        self._lock = -1

    def enter(self) -> None:
        """Lock the folder, put back what a kill left without a name, and remove what nothing can go on with."""
        self._refuse_strangers()
        self._lock = self._take_lock()
        self.found_work = self.bundle.exists() or self.rounding.exists()
        self._recover()
        self.bundle.mkdir(exist_ok=True)
        for file in self.bundle.iterdir():
            if not self.journal(file.name).is_file():
                _remove(file)

    def journal(self, name: str) -> Path:
        """Where the journal of a file in `bundle` is."""
        return self.path / f"{name}{JOURNAL}"

    def publish(self, *, replace: bool) -> None:
        """Give `bundle` the name `place`; what had that name lies here afterwards. Raises FileExistsError, OSError."""
        for journal in self.path.glob(f"*{JOURNAL}"):
            journal.unlink()  # they speak of the new files, and here will be old ones
        if not replace:
            rename_new(self.bundle, self.place)
        elif not exchange(self.bundle, self.place):
            try:
                self.place.rename(self.path / OLD)
                self.bundle.rename(self.place)
            finally:
                self._recover()

    def leave(self, *, keep_rounding: bool) -> None:
        """Remove the folder, but for what rounding has done where that is to be kept."""
        if self._lock < 0:
            return
        with suppress(OSError):  # what a failing disk does not let go is removed by the next start
            self._recover()
            for path in self.path.iterdir():
                if path.name != LOCK and not (keep_rounding and path.name == ROUNDING):
                    _remove(path)
            (self.path / LOCK).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1
        with suppress(OSError):  # rounding is kept, or the next one has come in
            self.path.rmdir()

    def _recover(self) -> None:
        """Give the replaced bundle its name back where a replacement was not finished."""
        old = self.path / OLD
        if old.exists() and not os.path.lexists(self.place):
            old.rename(self.place)

    def _refuse_strangers(self) -> None:
        if not os.path.lexists(self.path):
            return
        if self.path.is_symlink() or not self.path.is_dir():
            raise BundleError(f"{self.path} is needed as a work folder, but speccompile did not make it; move it away")
        for path in self.path.iterdir():
            if path.name not in (LOCK, BUNDLE, ROUNDING, OLD) and path.suffix != JOURNAL:
                raise BundleError(f"{path}: speccompile did not make this file; move it away, {self.path} is needed")

    def _take_lock(self) -> int:
        path = self.path / LOCK
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:  # the one that worked here has just removed the folder
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise BundleError(
                    f"{self.place} is being written by another speccompile; wait, or choose another place with -o"
                ) from None
            except OSError:  # a file system without locks: alone, as far as anybody can tell
                return lock
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
            os.close(lock)


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
