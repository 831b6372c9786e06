"""The keys of a GGUF file's architecture, read by name; an unread key might change the model, and is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mxspec.compile.checkpoint.settings.plain_decoder import ONLY_PLAIN
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten

_MISSING = object()
_NO_SETTINGS = ("rope.scaling.finetuned",)  # says whether training used the scaling; computing is the same


class Keys:
    """The keys that begin with the architecture's name; names here leave the architecture out."""

    def __init__(self, path: Path, keys: Mapping[str, Any], arch: str) -> None:
        self.path, self.arch = path, arch
        self._keys = {
            name.removeprefix(f"{arch}."): value for name, value in keys.items() if name.startswith(f"{arch}.")
        }
        self._read = set(_NO_SETTINGS)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 0. Raises CheckpointError."""
        value = self._value(name, default)
        if type(value) is not int or value < 0:
            raise self._wrong(name, value, "a whole number from 0")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number: the shortest decimal that equals the file's float32. Raises CheckpointError."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not np.isfinite(value):
            raise self._wrong(name, value, "a finite number")
        return float(str(np.float32(value)))

    def text(self, name: str, default: str) -> str:
        """A text. Raises CheckpointError."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def require(self, name: str, expected: object) -> None:
        """Refuse another value of a key than the family's only one; the key may be missing."""
        value = self._value(name, expected)
        if type(value) is not type(expected) or value != expected:
            raise UnsupportedModelError(
                f"{self.path}: {self.arch}.{name}: got {shorten(value)}, expected {expected!r}: other values are not "
                "supported"
            )

    def check_all_read(self) -> None:
        """Raise UnsupportedModelError for a key that nothing read."""
        unread = sorted(self._keys.keys() - self._read)
        if any(name.startswith("expert") for name in unread):
            raise UnsupportedModelError(f"{self.path}: a mixture of experts ({self.arch}.{unread[0]}): {ONLY_PLAIN}")
        if unread:
            raise UnsupportedModelError(
                f"{self.path}: key {self.arch}.{unread[0]} is not known, and may change the model; "
                f"{len(unread)} such keys"
            )

    def _value(self, name: str, default: object) -> Any:
        self._read.add(name)
        value = self._keys.get(name, _MISSING)
        if value is _MISSING:
            if default is None:
                raise CheckpointError(f"{self.path}: key {self.arch}.{name} is missing")
            return default
        return value

    def _wrong(self, name: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.arch}.{name}: got {shorten(value)}, expected {expected}")
