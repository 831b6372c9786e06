"""The beginning of texts as the models have read it, in a file: its tokens, and their keys and values."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, MxspecError
from mxspec.formats.manifest import TOKENIZER, Count, ModelName
from mxspec.formats.safetensors_file import map_arrays, write_arrays
from mxspec.formats.validation import Strict, first_problem

Rows = Mapping[str, NDArray[Any]]  # by the name of a cache: [kv_heads, tokens, entry]
_ABOUT, _SHA256 = "about", "sha256"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReadBeginning:
    """Tokens that the target has read, and the draft the first `draft_length` of them, for texts with `cache_key`."""

    tokens: list[int]
    cache_key: str
    target: Rows
    draft_length: int = 0
    draft: Rows = field(default_factory=dict)


class _About(Strict):
    """What a file says of itself."""

    version: int
    models: dict[str, str]
    tokens: Annotated[list[Count], Field(min_length=1)]
    cache_key: str
    draft_length: Count


def write_beginning(path: Path, beginning: ReadBeginning, bundle: Bundle, model: ModelName) -> None:
    """Write a file, whole or not at all. Raises MxspecError."""
    about = _About(
        version=_VERSION,
        models=_identity(bundle, model),
        tokens=beginning.tokens,
        cache_key=beginning.cache_key,
        draft_length=beginning.draft_length,
    )
    arrays = {_ABOUT: np.frombuffer(about.model_dump_json().encode(), np.uint8)}
    for whose, rows in (("target", beginning.target), ("draft", beginning.draft)):
        for name, row in rows.items():
            arrays[f"{whose}.{name}"] = np.ascontiguousarray(row).reshape(-1).view(np.uint8)
    arrays[_SHA256] = np.frombuffer(_digest(arrays), np.uint8)
    try:
        with _replacing(path) as place:
            write_arrays(place, arrays)
    except (OSError, MxspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MxspecError(f"prompt cache {path}: cannot be written: {reason}") from None


def read_beginning(path: Path, bundle: Bundle, model: ModelName) -> ReadBeginning:
    """Read a file, all of it. Raises MxspecError where it is damaged, or was made with other models."""
    try:
        arrays = {name: np.array(array) for name, array in map_arrays(path).items()}
    except (OSError, BundleError) as error:
        raise MxspecError(f"prompt cache {path}: {error}") from None
    stored = arrays.pop(_SHA256, None)
    if _ABOUT not in arrays or stored is None or stored.tobytes() != _digest(arrays):
        raise MxspecError(f"prompt cache {path}: damaged, or not a prompt cache; delete it, and it is made again")
    try:
        about = _About.model_validate_json(arrays.pop(_ABOUT).tobytes())
    except ValidationError as problems:
        raise MxspecError(f"prompt cache {path}: {first_problem(problems, _About)}") from None
    if about.version != _VERSION or about.models != _identity(bundle, model):
        raise MxspecError(f"prompt cache {path}: made with another bundle than {bundle.path}; name a new one")
    rows: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        whose, _, cache = name.partition(".")
        rows.setdefault(whose, {})[cache] = array
    return ReadBeginning(
        about.tokens, about.cache_key, rows.get("target", {}), about.draft_length, rows.get("draft", {})
    )


def _identity(bundle: Bundle, model: ModelName) -> dict[str, str]:
    """Hashes of what decides the rows: the tokenizer, and graphs and weights of the models."""
    manifest = bundle.manifest
    entries = [manifest.models[name] for name in (model, "draft") if name in manifest.models]
    names = {TOKENIZER, *(file for entry in entries for file in (*entry.graphs, entry.weights))}
    return {name: manifest.files[name].sha256 for name in sorted(names)}


def _digest(arrays: Rows) -> bytes:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.nbytes}\n".encode())
        digest.update(array.data if array.size else b"")
    return digest.digest()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, which takes its place at the end, or vanishes after an error."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        place = Path(folder) / path.name
        yield place
        os.replace(place, path)
