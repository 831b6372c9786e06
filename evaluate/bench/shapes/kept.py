"""The bundles of random weights that were made before, with their paths and sizes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxspec.formats.manifest import MANIFEST

RANDOM = "random"  # the checkpoint in the recipe of such a bundle's manifest


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """A bundle of random weights."""

    path: Path
    bytes: int

    @classmethod
    def of(cls, path: Path) -> KeptBundle:
        return cls(path, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))

    def __str__(self) -> str:
        return f"{self.path} ({self.bytes / 1e6:,.0f} MB)"

    def remove(self) -> None:
        shutil.rmtree(self.path)


def kept_bundles(folder: Path) -> Sequence[KeptBundle]:
    """The bundles of random weights in a folder, by name; other bundles and files are left out."""
    if not folder.is_dir():
        return []
    return [KeptBundle.of(path) for path in sorted(folder.iterdir()) if _is_random(path)]


def _is_random(path: Path) -> bool:
    if path.is_symlink():
        return False
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest["recipe"]["target"]["checkpoint"] == RANDOM)
    except (OSError, ValueError, LookupError, TypeError):
        return False
