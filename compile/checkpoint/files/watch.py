"""Files of a checkpoint as they were when they were opened: what changes while it is compiled is no checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mxspec.formats.errors import CheckpointError


class Watch:
    """Device, file, size and time of the last change of each file that was added; None for one that is missing."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[int, ...] | None] = {}

    def add(self, paths: Iterable[Path]) -> None:
        """Keep what these files are now: to be called before they are read."""
        self._before |= {path: _state(path) for path in paths}

    def require_unchanged(self) -> None:
        """Raise CheckpointError for the first file that is another now, or gone, or new."""
        for path, before in self._before.items():
            now = _state(path)
            if now != before:
                what = "appeared" if before is None else "was removed" if now is None else "was changed"
                raise CheckpointError(f"{path}: {what} while it was compiled, so no bundle was written: try again")


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
