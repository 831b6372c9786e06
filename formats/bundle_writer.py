"""Writes a bundle so that a half one is never seen under its name."""

from __future__ import annotations

from pathlib import Path

from mxspec.formats.bundle import check_replaceable, file_sha256
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import MANIFEST, FileEntry, Manifest


class BundleWriter(FolderWriter):
    """The folder of a bundle in the making; an existing bundle is refused, or with `force` replaced."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        super().__init__(path, kind="bundle", check_replaceable=check_replaceable, force=force)

    def entry(self, name: str, sha256: str | None = None) -> FileEntry:
        """Size and hash of a file written to the folder; it is hashed here unless the hash is known."""
        path = self.folder / name
        return FileEntry(bytes=path.stat().st_size, sha256=sha256 or file_sha256(path))

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, flush, and rename the folder to its place, over an old bundle only now."""
        self.publish_with(MANIFEST, manifest.to_json())
