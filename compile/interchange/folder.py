"""The folder that an emitted bundle lies in, and the file there that says what is what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mxspec.formats.bundle import Bundle, file_sha256
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import MANIFEST

INDEX = "interchange.json"

Kind = Literal["standard", "static"]


class EmittedFolder(FolderWriter):
    """The folder of emitted models in the making; an existing one is refused, or with `force` replaced."""

    def __init__(self, path: Path, kind: Kind, *, force: bool = False) -> None:
        super().__init__(path, marker=INDEX, kind="folder of emitted models", force=force)
        self._what = kind

    def publish(self, bundle: Bundle, models: Mapping[str, Any]) -> dict[str, Any]:
        """Write the index and move the folder to its place; what the index says."""
        index = {
            "kind": self._what,
            "name": bundle.manifest.name,
            "manifest_sha256": file_sha256(bundle.path / MANIFEST),
            "models": dict(models),
        }
        self.publish_with(json.dumps(index, indent=1) + "\n")
        return index
