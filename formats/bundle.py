"""The bundle: the directory that speccompile writes and everything else reads. docs/bundle.md specifies it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mxspec.formats.errors import BundleError
from mxspec.formats.file_kind import what_it_is
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import (
    MANIFEST,
    TOKENIZER,
    AnyManifest,
    FileEntry,
    GuessesName,
    Manifest,
    ModelEntry,
    ModelName,
    TensorEntry,
)
from mxspec.formats.safetensors_file import ALIGNMENT, StoredTensor, read_header
from mxspec.formats.weight_format import stored_as

MANIFEST_LIMIT = 64 << 20  # bytes; a manifest of a 70B pair is below 1 MiB
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose structure was checked; the contents of its files are only hashed by `verify`."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Read the manifest and check sizes, offsets, overlaps, holes, names and keys; raises BundleError."""
        folder = Path(path)
        try:
            if not folder.is_dir():
                found = "is a file, and a bundle a directory" if os.path.lexists(folder) else "no such directory"
                raise BundleError(what_it_is(folder) or f"{found}; a bundle is what speccompile writes")
            manifest = Manifest.parse(_manifest_text(folder))
            _check_files(folder, manifest)
            for entry in manifest.models.values():
                _check_weights(folder, entry)
        except BundleError as problem:
            raise BundleError(f"bundle {folder}: {problem}") from None
        except OSError as problem:
            raise BundleError(f"bundle {folder}: {problem.filename}: {problem.strerror}") from None
        return cls(folder, manifest)

    def graph_path(self, model: ModelName) -> Path:
        """Path of a model's ONNX file; raises BundleError if the bundle has no such model."""
        return self.path / self._entry(model).graph

    def weights_path(self, model: ModelName) -> Path:
        """Path of a model's safetensors file; raises BundleError if the bundle has no such model."""
        return self.path / self._entry(model).weights

    def guesses_path(self, drafter: GuessesName) -> Path | None:
        """Path of what a drafter knows of a text, if the bundle was compiled with one."""
        entry = self.manifest.guesses.get(drafter)
        return None if entry is None else self.path / entry.file

    @property
    def tokenizer_path(self) -> Path:
        """Path of tokenizer.json."""
        return self.path / TOKENIZER

    def verify(self) -> None:
        """Hash every file; raises BundleError naming those that are not what speccompile wrote."""
        changed = list(self.changed_files())
        if changed:
            raise BundleError(f"bundle {self.path}: SHA-256 differs for {', '.join(changed)}; compile it again")

    def changed_files(self) -> Iterator[str]:
        """Names of the files whose SHA-256 is not the one in the manifest."""
        for name, entry in self.manifest.files.items():
            try:
                if file_sha256(self.path / name) != entry.sha256:
                    yield name
            except OSError as problem:
                raise BundleError(f"bundle {self.path}: {name}: {problem.strerror}") from None

    def _entry(self, model: ModelName) -> ModelEntry:
        if model not in self.manifest.models:
            hint = "; compile with --with-baseline" if model == "baseline" else ""
            raise BundleError(f"bundle {self.path}: holds no {model}, only {', '.join(self.manifest.models)}{hint}")
        return self.manifest.models[model]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def check_replaceable(folder: Path) -> None:
    """Raise BundleError unless a folder holds a manifest of ours, of any schema version, and no file beside its own."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            raise BundleError("it is not a folder")
        _check_surplus(folder, AnyManifest.parse(_manifest_text(folder)))
        below = next((path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink()), None)
        if below is not None:
            raise BundleError(f"{below!r} is a folder")
    except BundleError as problem:
        raise BundleError(f"{folder} exists and is not a bundle: {problem}; --force replaces only bundles") from None


class BundleWriter(FolderWriter):
    """The folder of a bundle in the making; an existing bundle is refused, or with `force` replaced."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        super().__init__(path, kind="bundle", check_replaceable=check_replaceable, force=force)
        self.files: dict[str, FileEntry] = {}

    def add_file(self, name: str, sha256: str | None = None) -> None:
        """List a file of the folder in `files`; it is hashed here unless the hash is known."""
        path = self.folder / name
        self.files[name] = FileEntry(bytes=path.stat().st_size, sha256=sha256 or file_sha256(path))

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, flush, and rename the folder to its place, over an old bundle only now."""
        self.publish_with(MANIFEST, manifest.to_json())


def _manifest_text(folder: Path) -> bytes:
    if not os.path.lexists(folder / MANIFEST):
        hint = what_it_is(folder) or "this is not a bundle, or an incomplete one"
        raise BundleError(f"{MANIFEST} is missing; {hint}")
    path = _file_inside(folder, MANIFEST)
    if path.stat().st_size > MANIFEST_LIMIT:
        raise BundleError(f"{MANIFEST}: {path.stat().st_size} bytes, at most {MANIFEST_LIMIT} expected")
    return path.read_bytes()


def _check_files(folder: Path, manifest: Manifest) -> None:
    """The folder holds the files of the manifest, in their sizes, inside it, and nothing else."""
    for name, entry in manifest.files.items():
        if not os.path.lexists(folder / name):
            raise BundleError(f"file {name!r} is missing")
        size = _file_inside(folder, name).stat().st_size
        if size != entry.bytes:
            raise BundleError(f"file {name!r}: {size} bytes, the manifest says {entry.bytes}")
    _check_surplus(folder, manifest)


def _file_inside(folder: Path, name: str) -> Path:
    """The regular file of that name; a link may lead to another file of the folder."""
    try:
        path = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError):  # Python below 3.13 says RuntimeError for a loop
        raise BundleError(f"file {name!r} is a broken link") from None
    if path.parent != folder.resolve():
        raise BundleError(f"file {name!r} is a link to {path}, outside the bundle")
    if not path.is_file():
        raise BundleError(f"{name!r} is not a file")
    return path


def _check_surplus(folder: Path, manifest: Manifest | AnyManifest) -> None:
    surplus = {path.name for path in folder.iterdir()} - manifest.files.keys() - {MANIFEST}
    if surplus:
        raise BundleError(f"file {min(surplus)!r} is not in the manifest; remove it or compile again")


def _check_weights(folder: Path, entry: ModelEntry) -> None:
    """The header of a weights file and the manifest's table of tensors say the same."""
    stored = read_header(folder / entry.weights, BundleError)
    for tensor in entry.tensors:
        where = f"{entry.weights}: tensor {tensor.name!r}"
        if tensor.name not in stored or stored[tensor.name].is_padding:
            raise BundleError(f"{where} of the manifest is not in the file")
        _check_tensor(where, tensor, stored.pop(tensor.name))
    unlisted = next((tensor.name for tensor in stored.values() if not tensor.is_padding), None)
    if unlisted is not None:
        raise BundleError(f"{entry.weights}: tensor {unlisted!r} is not in the manifest")


def _check_tensor(where: str, entry: TensorEntry, stored: StoredTensor) -> None:
    if (entry.offset, entry.bytes) != (stored.offset, stored.bytes):
        raise BundleError(
            f"{where}: {stored.bytes} bytes at {stored.offset}, the manifest says {entry.bytes} at {entry.offset}"
        )
    if entry.offset % ALIGNMENT:
        raise BundleError(f"{where}: offset {entry.offset} is not a multiple of {ALIGNMENT}")
    try:
        dtype, shape = stored_as(entry.format, entry.shape)
    except ValueError as problem:
        raise BundleError(f"{where}: {problem}") from None
    if (stored.dtype, stored.shape) != (dtype, shape):
        raise BundleError(
            f"{where}: {entry.format} {list(entry.shape)} is stored as {dtype} {list(shape)}, "
            f"the file has {stored.dtype} {list(stored.shape)}"
        )
