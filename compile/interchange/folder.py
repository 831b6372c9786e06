"""The folder of an emitted bundle, and the index file in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxspec.formats.bundle import Bundle, file_sha256
from mxspec.formats.errors import BundleError
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import MANIFEST
from mxspec.formats.validation import parse_json

INDEX = "interchange.json"
KIND = "folder of emitted models"


class EmittedFolder(FolderWriter):
    """Makes the folder of emitted models; an existing folder is refused, or with `force` replaced."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        super().__init__(path, kind=KIND, check_replaceable=check_emitted, force=force)

    def publish(self, bundle: Bundle, models: Mapping[str, Any]) -> dict[str, Any]:
        """Write the index and move the folder to its place; return the index."""
        index = {
            "kind": "standard",
            "name": bundle.manifest.name,
            "manifest_sha256": file_sha256(bundle.path / MANIFEST),
            "models": dict(models),
            "files": sorted(path.name for path in self.folder.iterdir()),
        }
        self.publish_with(INDEX, json.dumps(index, indent=1) + "\n")
        return index


def check_emitted(folder: Path) -> None:
    """Raise BundleError unless a folder holds an index of mxspec and only files that the index names."""
    refused = f"{folder} exists and is not a {KIND}; --force replaces only those"
    if folder.is_symlink() or not (folder / INDEX).is_file():
        raise BundleError(refused)
    match parse_json((folder / INDEX).read_bytes(), str(folder / INDEX), BundleError):
        case {"manifest_sha256": str(), "files": list(files)}:
            if others := sorted({path.name for path in folder.iterdir()} - {INDEX, *map(str, files)}):
                raise BundleError(f"{refused}: {others[0]!r} was not written by speccompile")
        case _:
            raise BundleError(refused)
