"""Writes a bundle: a folder that is seen under its name only when it is whole, and has a manifest."""

from __future__ import annotations

from pathlib import Path

from mxspec.formats.bundle import file_sha256
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import MANIFEST, FileEntry, Manifest


class BundleWriter(FolderWriter):
    """The folder of a bundle in the making; an existing bundle is refused, or with `force` replaced."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        super().__init__(path, marker=MANIFEST, kind="bundle", force=force)

    def entry(self, name: str, sha256: str | None = None) -> FileEntry:
        """Size and hash of a file written to the folder; it is hashed here unless the hash is known."""
        path = self.folder / name
        return FileEntry(bytes=path.stat().st_size, sha256=sha256 or file_sha256(path))

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, flush, and rename the folder to its place, over an old bundle only now."""
        self.publish_with(manifest.to_json())
