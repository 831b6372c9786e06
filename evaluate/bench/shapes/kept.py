"""Bundles of random weights that were made before, where they are kept, and how large they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxspec.formats.manifest import MANIFEST

RANDOM = "random"  # what the recipe in the manifest of such a bundle names as its checkpoint


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """One of them."""

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
    """Those in a folder, by name; no other bundle, and nothing else."""
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
