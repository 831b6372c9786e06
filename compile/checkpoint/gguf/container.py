"""The GGUF container: a header of keys and tensors, then the tensors' data.

    offset  size
         0     4   "GGUF"
         4     4   version, 2 or 3
         8     8   number of tensors
        16     8   number of keys
        24         keys:     string name, u32 kind, value
                   tensors:  string name, u32 dimensions, u64 sizes (the fastest first), u32 type, u64 offset
                   padding to a multiple of `general.alignment` (32), where offsets are counted from

A string is a u64 length and its bytes; an array is a u32 kind, a u64 length and the values. All numbers are little
endian. Source: ggml's gguf.h. Every count is compared with the file's size before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mxspec.compile.checkpoint.gguf.blocks import BLOCK_TYPES, UNSUPPORTED_TYPES
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.file_kind import GGUF_MAGIC, what_it_is
from mxspec.formats.safetensors_file import StoredTensor
from mxspec.formats.validation import shorten

VERSIONS = (2, 3)
MOST_KEYS = 1 << 16
MOST_TENSORS = 1 << 17
LONGEST_NAME = 1 << 10  # bytes
LONGEST_TEXT = 16 << 20  # bytes of a value: a chat template has a few thousand
LONGEST_ARRAY = 1 << 23  # entries: the largest vocabularies have half a million merges
MOST_DIMENSIONS = 4

_TEXT, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class Container:
    """What the header of a file says; values are str, bool, int, float, numpy arrays, or lists of str.

    A tensor's `dtype` is the name of its block type.
    """

    path: Path
    keys: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def read_container(path: Path) -> Container:
    """Read and check the header of a file.

    Raises CheckpointError for a damaged file, UnsupportedModelError for a type of tensors that is not supported.
    """
    try:
        with path.open("rb", buffering=1 << 20) as file:
            return _read(path, _Cursor(file, path.stat().st_size))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except _Fault as fault:
        raise CheckpointError(f"{path}: {fault}") from None


class _Fault(Exception):
    """An error in a file, without the file's name."""


class _Cursor:
    """Reads a file from its start, never beyond its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self.size, self.position = file, size, 0

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.position:
            raise _Fault(f"{what}: {count} bytes at {self.position} in a file of {self.size}; the file is cut short")
        data = self._file.read(count)
        if len(data) != count:
            raise _Fault("became shorter while it was read")
        self.position += count
        return data

    def number(self, layout: str, what: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout), what))[0])

    def text(self, longest: int, what: str) -> str:
        try:
            return self.take(self._length(longest, what), what).decode()
        except UnicodeDecodeError:
            raise _Fault(f"{what}: not UTF-8") from None

    def tokens(self, count: int, what: str) -> list[str]:
        """Texts of an array; bytes that are not UTF-8 become surrogates: some vocabularies hold half characters."""
        return [
            self.take(self._length(LONGEST_NAME, what), what).decode(errors="surrogateescape")
            for _ in range(self._fits(count, 8, what))
        ]

    def numbers(self, kind: int, count: int, what: str) -> Any:
        dtype = _NUMBERS[kind]
        data = self.take(self._fits(count, dtype.itemsize, what) * dtype.itemsize, what)
        values = np.frombuffer(data, dtype)
        return values.astype(bool) if kind == _BOOL else values

    def _length(self, longest: int, what: str) -> int:
        count = self.number("<Q", what)
        if count > longest:
            raise _Fault(f"{what}: text of {count} bytes, expected at most {longest}")
        return count

    def _fits(self, count: int, least: int, what: str) -> int:
        """Check that the file is large enough for `count` entries of at least `least` bytes; return the count."""
        if count > LONGEST_ARRAY:
            raise _Fault(f"{what}: {count} entries, expected at most {LONGEST_ARRAY}")
        if count * least > self.size - self.position:
            raise _Fault(f"{what}: {count} entries at {self.position} in a file of {self.size}; the file is cut short")
        return count


def _read(path: Path, cursor: _Cursor) -> Container:
    if cursor.take(4, "header") != GGUF_MAGIC:
        hint = what_it_is(path)
        raise _Fault("not a GGUF file: it does not begin with 'GGUF'" if hint is None else f"not a GGUF file; {hint}")
    version = cursor.number("<I", "header")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = "big endian, expected little endian" if swapped in VERSIONS else f"version {version}, expected 2 or 3"
        raise _Fault(f"a GGUF file that is {found}")
    tensor_count, key_count = cursor.number("<Q", "header"), cursor.number("<Q", "header")
    if tensor_count > MOST_TENSORS or key_count > MOST_KEYS:
        raise _Fault(
            f"{tensor_count} tensors and {key_count} keys, expected at most {MOST_TENSORS} and {MOST_KEYS}; the file "
            "is damaged"
        )
    keys: dict[str, Any] = {}
    for _ in range(key_count):
        name = cursor.text(LONGEST_NAME, "a key")
        if name in keys:
            raise _Fault(f"key {shorten(name)} appears twice")
        keys[name] = _value(cursor, f"key {shorten(name)}")
    places = [_tensor(cursor) for _ in range(tensor_count)]
    alignment = keys.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise _Fault(f"general.alignment: got {alignment!r}, expected a power of two")
    start = -(-cursor.position // alignment) * alignment
    tensors = _placed(path, places, start, alignment, cursor.size)
    return Container(path, keys, tensors)


def _value(cursor: _Cursor, what: str) -> Any:
    kind = cursor.number("<I", what)
    if kind == _TEXT:
        return cursor.text(LONGEST_TEXT, what)
    if kind == _ARRAY:
        inner, count = cursor.number("<I", what), cursor.number("<Q", what)
        if inner == _TEXT:
            return cursor.tokens(count, what)
        if inner in _NUMBERS:
            return cursor.numbers(inner, count, what)
        raise _Fault(f"{what}: an array of kind {inner}, expected numbers or text")
    if kind in _NUMBERS:
        return cursor.numbers(kind, 1, what)[0].item()
    raise _Fault(f"{what}: kind {kind}, expected 0 to 12")


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


def _tensor(cursor: _Cursor) -> _Place:
    name = cursor.text(LONGEST_NAME, "a tensor's name")
    what = f"tensor {shorten(name)}"
    dimensions = cursor.number("<I", what)
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise _Fault(f"{what}: {dimensions} dimensions, expected 1 to {MOST_DIMENSIONS}")
    sizes = [cursor.number("<Q", what) for _ in range(dimensions)]
    if not all(1 <= size < 1 << 40 for size in sizes) or math.prod(sizes) >= 1 << 48:
        raise _Fault(f"{what}: sizes {sizes}, expected positive ones of a tensor that a file can hold")
    return _Place(name, tuple(reversed(sizes)), cursor.number("<I", what), cursor.number("<Q", what))


def _placed(path: Path, places: list[_Place], start: int, alignment: int, size: int) -> dict[str, StoredTensor]:
    """The tensors by name; each must have a known type and lie inside the file, and none may overlap another."""
    tensors: dict[str, StoredTensor] = {}
    end, before = start, "the header"
    for place in sorted(places, key=lambda place: place.offset):
        what = f"tensor {shorten(place.name)}"
        if place.name in tensors:
            raise _Fault(f"{what} appears twice")
        kind = BLOCK_TYPES.get(place.type)
        if kind is None:
            known = ", ".join(known.name for known in BLOCK_TYPES.values())
            found = UNSUPPORTED_TYPES.get(place.type, f"of the unknown type {place.type}")
            raise UnsupportedModelError(f"{path}: {what} is {found}, which is not supported; supported are {known}")
        if place.shape[-1] % kind.elements:
            raise _Fault(
                f"{what}: rows of {place.shape[-1]} values, expected a multiple of {kind.elements} ({kind.name})"
            )
        if place.offset % alignment:
            raise _Fault(f"{what}: offset {place.offset}, expected a multiple of {alignment}")
        size_there = math.prod(place.shape) // kind.elements * kind.bytes
        tensor = StoredTensor(place.name, kind.name, place.shape, start + place.offset, size_there)
        if tensor.offset < end:
            raise _Fault(f"{what} at {tensor.offset} overlaps {before}, which ends at {end}")
        end, before = tensor.offset + tensor.bytes, what
        if end > size:
            raise _Fault(f"{what} ends at {end} in a file of {size}; the file is cut short")
        tensors[place.name] = tensor
    return tensors
