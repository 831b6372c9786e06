"""What a tensor of a checkpoint is, and those of open files, read in pieces so that nothing stays in our memory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from mxspec.formats.errors import CheckpointError
from mxspec.formats.safetensors_file import StoredTensor, read_header

# numpy has no bfloat16: its bit patterns travel as uint16, and `dtype` says what they are.
ARRAY_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Tensor(Protocol):
    """A tensor of a checkpoint, as a file has it or computed from such tensors as it is read.

    A way of reading that a tensor does not have raises UnsupportedModelError, or fails an assertion.
    """

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""

    @property
    def shard(self) -> str:
        """Name of the file that holds it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is read."""

    @property
    def bytes(self) -> int:
        """Size in the checkpoint."""

    @property
    def dtype(self) -> str:
        """Type of what is read: float32, float16, bfloat16 (as uint16), or another by its name in the file."""

    @property
    def identity(self) -> tuple[int, ...]:
        """Changes when a file does, or the way of computing it."""

    @property
    def origins(self) -> frozenset[str]:
        """The block types to which a GGUF file had rounded its values."""

    def read_rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Rows [begin, end) along the first axis."""

    def read_columns(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Columns [begin, end) of a matrix, all rows."""

    def read_bytes(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Rows [begin, end) as uint8[rows, bytes of a row], whatever their type is."""


Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor of a file that is open: where it lies, and its bytes."""

    stored: StoredTensor
    descriptor: int
    shard: str

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def bytes(self) -> int:
        return self.stored.bytes

    @property
    def identity(self) -> tuple[int, ...]:
        return identity_of(self.descriptor)

    @property
    def origins(self) -> frozenset[str]:
        return frozenset()

    def reshaped(self, *shape: int) -> Self:
        """The same values in another shape."""
        assert math.prod(shape) == math.prod(self.shape), f"{self.name}: {shape} for {self.shape}"
        return replace(self, stored=replace(self.stored, shape=shape))

    def read_bytes(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        values = np.empty((end - begin, self.stored.bytes // self.shape[0]), np.uint8)
        self._read(values, self.stored.offset + begin * values.shape[1])
        return values

    def _read(self, values: npt.NDArray[Any], offset: int) -> None:
        read_into(values, self.descriptor, offset, f"{self.shard}: tensor {self.name!r}")


@dataclass(frozen=True, slots=True)
class CheckpointTensor(FileTensor):
    """A tensor of a shard; `dtype` is float32, float16 or bfloat16 (or, for what we cannot pack, its name there)."""

    @property
    def dtype(self) -> str:
        return DTYPE_NAMES.get(self.stored.dtype, self.stored.dtype)

    def read(self) -> npt.NDArray[Any]:
        """All of it, in the checkpoint's own type (bfloat16 as uint16)."""
        values = self._empty(self.shape)
        self._read(values, self.stored.offset)
        return values

    def read_rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        row = self.stored.bytes // self.shape[0]
        values = self._empty((end - begin, *self.shape[1:]))
        self._read(values, self.stored.offset + begin * row)
        return values

    def read_columns(self, begin: int, end: int) -> npt.NDArray[Any]:
        rows, columns = self.shape
        values = self._empty((rows, end - begin))
        size = values.itemsize
        for row in range(rows):
            self._read(values[row], self.stored.offset + (row * columns + begin) * size)
        return values

    def _empty(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if self.stored.dtype not in ARRAY_TYPES:
            raise CheckpointError(
                f"tensor {self.name!r} of {self.shard} is {self.stored.dtype}, expected float32, float16 or bfloat16; "
                "give the original checkpoint, or one whose config.json says that it is MX"
            )
        return np.empty(shape, ARRAY_TYPES[self.stored.dtype])


def read_into(values: npt.NDArray[Any], descriptor: int, offset: int, where: str) -> None:
    """Fill an array with bytes of a file. Raises CheckpointError, which says `where`, for a file that is too short."""
    view = values.data.cast("B")
    while view.nbytes:
        try:
            got = os.preadv(descriptor, [view], offset)
        except OSError as error:
            raise CheckpointError(f"{where}: {error.strerror}") from None
        if got == 0:
            raise CheckpointError(f"{where}: the file became shorter while it was read")
        view, offset = view[got:], offset + got


def identity_of(file: int | Path) -> tuple[int, ...]:
    """Changes when a file does, an open one or one by its path: device, file, size and time of the last change."""
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def hold_open(path: Path, files: ExitStack) -> int:
    """A descriptor to read a file by, until `files` ends. Raises CheckpointError where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    files.callback(os.close, descriptor)
    return descriptor


def open_shard(path: Path, files: ExitStack) -> dict[str, CheckpointTensor]:
    """The tensors of a safetensors file, which is open until `files` ends. Raises CheckpointError for a damaged one."""
    stored = read_header(path, CheckpointError)
    descriptor = hold_open(path, files)
    return {name: CheckpointTensor(tensor, descriptor, path.name) for name, tensor in stored.items()}


def as_float32(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """The exact float32 of float32, float16 or bfloat16 (uint16 bit patterns) values."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def read_whole(tensor: Tensor) -> npt.NDArray[np.float32]:
    """All values of a tensor, in its shape."""
    values = tensor.read() if isinstance(tensor, CheckpointTensor) else tensor.read_rows(0, tensor.shape[0])
    return np.asarray(as_float32(values, tensor.dtype))  # numpy makes a scalar of an array of one number
