"""Safetensors files, read with distrust and written in one pass.

    offset 0        8 bytes, little endian: length h of the header
    offset 8        h bytes of JSON, padded with spaces: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}
    offset 8 + h    the tensors, without holes, begin and end counting from here

Format: https://github.com/huggingface/safetensors#format. What we write keeps one more rule: every tensor begins at a
multiple of 64 bytes, and `padding.N` tensors (uint8, less than 64 bytes) fill what would be holes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError, MxspecError
from mxspec.formats.file_kind import POINTER, is_pointer
from mxspec.formats.validation import parse_json

ALIGNMENT = 64  # a cache line, and the widest vector load of the kernels
HEADER_LIMIT = 100_000_000  # of the reference implementation; a longer header is an attack
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_READ_BYTES = 1 << 20
_PADDING = re.compile(r"padding\.\d+")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `offset` in bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def is_padding(self) -> bool:
        """Whether this is filler that aligns the next tensor."""
        return _PADDING.fullmatch(self.name) is not None


def read_header(path: Path, error: type[MxspecError]) -> dict[str, StoredTensor]:
    """Read a header and check sizes, offsets, overlaps and holes; raises `error` naming the file."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if length > min(HEADER_LIMIT, file_bytes - 8):
                cut = f"header of {length} bytes in a file of {file_bytes}; the file is cut short"
                found = POINTER if is_pointer(path) else cut
                raise error(f"{path.name}: {found}")
            text = file.read(length)
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}") from None
    header = parse_json(text, f"{path.name}: header", error)
    if not isinstance(header, dict):
        raise error(f"{path.name}: header is not a JSON object")
    header.pop("__metadata__", None)
    try:
        tensors = [_stored_tensor(name, entry, 8 + length) for name, entry in header.items()]
        _check_cover(tensors, 8 + length, file_bytes)
    except ValueError as problem:
        raise error(f"{path.name}: {problem}") from None
    return {tensor.name: tensor for tensor in tensors}


def _stored_tensor(name: str, entry: Any, data_start: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **unknown} if not unknown:
            pass
        case _:
            raise ValueError(f"tensor {name!r}: expected dtype, shape and data_offsets, got {str(entry)[:80]}")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {name!r}: unknown dtype {dtype!r}")
    if any(type(size) is not int or size < 0 for size in (*shape, begin, end)):
        raise ValueError(f"tensor {name!r}: shape {shape} and offsets {[begin, end]} must be counts")
    expected = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != expected:
        raise ValueError(f"tensor {name!r}: {end - begin} bytes, but {dtype}{shape} takes {expected}")
    return StoredTensor(name, dtype, tuple(shape), data_start + begin, expected)


def _check_cover(tensors: Sequence[StoredTensor], data_start: int, file_bytes: int) -> None:
    """Tensors in order of offset must touch each other, from the end of the header to the end of the file."""
    position, before = data_start, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.bytes)):
        if tensor.offset != position:
            fault = (
                "overlaps" if tensor.offset < position else f"leaves a hole of {tensor.offset - position} bytes after"
            )
            raise ValueError(f"tensor {tensor.name!r} at {tensor.offset} {fault} {before!r}, which ends at {position}")
        position, before = position + tensor.bytes, tensor.name
    if position != file_bytes:
        raise ValueError(f"tensors end at {position}, the file at {file_bytes}")


@dataclass(frozen=True, slots=True)
class Layout:
    """A safetensors file before its data: the bytes of the header, and where every tensor will lie, in order."""

    header: bytes
    tensors: tuple[StoredTensor, ...]

    @property
    def file_bytes(self) -> int:
        """Size of the finished file."""
        return self.tensors[-1].offset + self.tensors[-1].bytes if self.tensors else len(self.header)

    @property
    def offsets(self) -> Mapping[str, int]:
        """Offset from the start of the file of every tensor by name."""
        return {tensor.name: tensor.offset for tensor in self.tensors}


def plan_layout(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> Layout:
    """Lay out (name, dtype, shape) tensors in the given order, each at a multiple of 64 bytes."""
    placed: list[tuple[str, str, tuple[int, ...], int, int]] = []
    position = 0
    for name, dtype, shape in tensors:
        assert not _PADDING.fullmatch(name), name
        gap = -position % ALIGNMENT
        if gap:
            placed.append((f"padding.{len(placed)}", "U8", (gap,), position, position + gap))
        begin = position + gap
        position = begin + math.prod(shape) * DTYPE_BYTES[dtype]
        placed.append((name, dtype, shape, begin, position))
    entries = {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        for name, dtype, shape, begin, end in placed
    }
    assert len(entries) == len(placed), "two tensors of one name"
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start = 8 + len(text)
    return Layout(
        len(text).to_bytes(8, "little") + text,
        tuple(
            StoredTensor(name, dtype, shape, start + begin, end - begin) for name, dtype, shape, begin, end in placed
        ),
    )


class SafetensorsWriter:
    """Writes the tensors of a layout in their order, each in as many pieces as the caller likes, hashing on the way.

    `finished`: of a file that was begun before, the `sha256` it had after each tensor; the first `kept` of them stay as
    they are, what comes after them is cut off. An OSError names the file.
    """

    def __init__(self, path: Path, layout: Layout, finished: Sequence[str] = ()) -> None:
        self._path = path
        self._left = 0
        self._hash = hashlib.sha256()
        self._file = path.open("r+b" if finished else "xb", buffering=0)
        self.kept, last = self._take_over(layout.tensors, finished) if finished else (0, -1)
        self._pending = list(reversed(layout.tensors[last + 1 :]))
        if not self.kept:
            self._write(layout.header)

    def _take_over(self, tensors: Sequence[StoredTensor], finished: Sequence[str]) -> tuple[int, int]:
        """How many tensors are still as they were, and the index of the last; the file ends there afterwards."""
        kept, last, end = 0, -1, 0
        real = [(index, tensor) for index, tensor in enumerate(tensors) if not tensor.is_padding]
        for (index, tensor), sha256 in zip(real, finished, strict=False):
            digest = self._hash.copy()
            self._hash_next(digest, tensor.offset + tensor.bytes - end)
            if digest.hexdigest() != sha256:
                break
            self._hash, kept, last, end = digest, kept + 1, index, tensor.offset + tensor.bytes
        if self._file.seek(0, os.SEEK_END) > end:
            self._file.truncate(end)
        self._file.seek(end)
        return kept, last

    def _hash_next(self, digest: hashlib._Hash, count: int) -> None:
        while count and (piece := self._file.read(min(count, _READ_BYTES))):
            digest.update(piece)
            count -= len(piece)

    @property
    def sha256(self) -> str:
        """Of the file as far as it was written."""
        return self._hash.hexdigest()

    def begin(self, name: str) -> None:
        """Start the next tensor, which must be `name`; padding before it is written here."""
        assert self._left == 0, f"{self._left} bytes of the tensor before {name!r} are missing"
        tensor = self._pending.pop()
        if tensor.is_padding:
            self._write(bytes(tensor.bytes))
            tensor = self._pending.pop()
        assert tensor.name == name, f"{name!r} comes before its turn, next is {tensor.name!r}"
        self._left = tensor.bytes

    def append(self, piece: memoryview | bytes) -> None:
        """Write the next bytes of the tensor."""
        view = memoryview(piece).cast("B")
        assert view.nbytes <= self._left, f"{view.nbytes} bytes for the {self._left} left"
        self._left -= view.nbytes
        self._write(view)

    def finish(self) -> str:
        """Flush to disk and close; the SHA-256 of the whole file."""
        assert not self._pending, f"{self._pending[-1].name} is missing"
        assert self._left == 0, f"{self._left} bytes of the last tensor are missing"
        with self._naming_errors():
            os.fsync(self._file.fileno())
            self._file.close()
        return self.sha256

    def _write(self, piece: memoryview | bytes) -> None:
        self._hash.update(piece)
        view = memoryview(piece)
        with self._naming_errors():
            while view.nbytes:
                view = view[self._file.write(view) :]

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype("u1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Write uint8, int32 or int64 arrays to a new file; its SHA-256."""
    layout = plan_layout([(name, _NAMES[array.dtype], array.shape) for name, array in arrays.items()])
    with SafetensorsWriter(path, layout) as writer:
        for name, array in arrays.items():
            writer.begin(name)
            writer.append(np.ascontiguousarray(array).data if array.size else b"")
        return writer.finish()


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, read as they are looked at. Raises BundleError for what is no such file."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, stored in read_header(path, BundleError).items():
        if stored.is_padding:
            continue
        if stored.dtype not in _DTYPES or len(stored.shape) != 1:
            raise BundleError(
                f"{path.name}: {name!r} is {stored.dtype}{list(stored.shape)}, expected a row of integers"
            )
        empty = np.empty(0, _DTYPES[stored.dtype])
        mapped = np.memmap(path, _DTYPES[stored.dtype], "r", stored.offset, stored.shape) if stored.bytes else empty
        arrays[name] = np.asarray(mapped)  # indexing a memmap itself takes ten times as long
    return arrays
