"""The folder that an emitted bundle lies in, and the file there that says what is what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from mxspec.formats.bundle import Bundle, file_sha256
from mxspec.formats.errors import BundleError
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import MANIFEST
from mxspec.formats.validation import parse_json

INDEX = "interchange.json"

Kind = Literal["standard", "static"]


class EmittedFolder(FolderWriter):
    """The folder of emitted models in the making; an existing one is refused, or with `force` replaced."""

    def __init__(self, path: Path, kind: Kind, *, force: bool = False) -> None:
        super().__init__(path, marker=INDEX, kind="folder of emitted models", check_own=_check_own_files, force=force)
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


def _check_own_files(folder: Path) -> None:
    """Raise BundleError unless a folder holds an index of ours, and no file that it does not name."""
    if not (folder / INDEX).is_file():
        raise BundleError(f"{INDEX} is missing")
    match parse_json((folder / INDEX).read_bytes(), INDEX, BundleError):
        case {"kind": kind, "manifest_sha256": str(), "models": dict(models)} if kind in get_args(Kind):
            surplus = {path.name for path in folder.iterdir()} - set(_strings(models)) - {INDEX}
            if surplus:
                raise BundleError(f"file {min(surplus)!r} is not in {INDEX}")
        case _:
            raise BundleError(f"{INDEX} is of something else")


def _strings(tree: Any) -> Iterator[str]:
    """All strings in the values of nested objects; names of files are among them."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _strings(value)
