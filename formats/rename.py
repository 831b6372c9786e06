"""Renames directories so that a name is never missing, and a folder that appeared meanwhile is never replaced."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # of renameat2(2), Linux 3.15
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # an old kernel, or a file system that has no such thing


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
