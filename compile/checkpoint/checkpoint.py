"""A checkpoint on disk: safetensors shards, read in pieces with pread so that nothing of them stays in our memory."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mxspec.compile.checkpoint.config import load_config
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import PLAIN_NAME
from mxspec.formats.safetensors_file import DTYPE_BYTES, StoredTensor, read_header
from mxspec.formats.validation import parse_json, shorten

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# numpy has no bfloat16: its bit patterns travel as uint16, and `dtype` says what they are.
ARRAY_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """A tensor of a shard; `dtype` is float32, float16 or bfloat16 (or, for what we cannot pack, its name there)."""

    stored: StoredTensor
    descriptor: int
    shard: str

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the checkpoint."""
        return self.stored.shape

    @property
    def bytes(self) -> int:
        """Its size in the checkpoint."""
        return self.stored.bytes

    @property
    def itemsize(self) -> int:
        """Bytes of one of its values."""
        return DTYPE_BYTES[self.stored.dtype]

    @property
    def dtype(self) -> str:
        """Its element type, in numpy's spelling where numpy has it."""
        return DTYPE_NAMES.get(self.stored.dtype, self.stored.dtype)

    @property
    def identity(self) -> tuple[int, ...]:
        """Changes when its shard does: device, file, size and time of the last change."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def read_rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Rows [begin, end) along the first axis, in the checkpoint's own type (bfloat16 as uint16)."""
        row = self.stored.bytes // self.shape[0]
        values = self._empty((end - begin, *self.shape[1:]))
        self._read(values, self.stored.offset + begin * row)
        return values

    def read_columns(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Columns [begin, end) of a matrix, all rows, gathered by one read a row."""
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
                "give the original checkpoint, not a quantised one"
            )
        return np.empty(shape, ARRAY_TYPES[self.stored.dtype])

    def _read(self, values: npt.NDArray[Any], offset: int) -> None:
        view = values.data.cast("B")
        while view.nbytes:
            try:
                got = os.preadv(self.descriptor, [view], offset)
            except OSError as error:
                raise CheckpointError(f"{self.shard}: tensor {self.name!r}: {error.strerror}") from None
            if got == 0:
                raise CheckpointError(f"{self.shard} became shorter while tensor {self.name!r} was read")
            view, offset = view[got:], offset + got


class Checkpoint:
    """A checkpoint directory, opened: its configuration and its tensors by name, each read once.

    Raises CheckpointError for what is missing or cut, UnsupportedModelError for a configuration that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = load_config(folder)
        self.tensors: dict[str, CheckpointTensor] = {}
        self._files = ExitStack()
        try:
            for shard, promised in _shards(folder).items():
                self._add(shard, promised)
        except BaseException:
            self.close()
            raise

    def _add(self, shard: str, promised: set[str]) -> None:
        path = self.folder / shard
        stored = read_header(path, CheckpointError)
        if missing := sorted(promised - stored.keys()):
            raise CheckpointError(f"{path}: tensor {missing[0]!r} of {INDEX} is not there ({len(missing)} missing)")
        descriptor = os.open(path, os.O_RDONLY)
        self._files.callback(os.close, descriptor)
        for name, tensor in stored.items():
            if name in self.tensors:
                raise CheckpointError(f"tensor {name!r} is in {self.tensors[name].shard} and in {shard}")
            self.tensors[name] = CheckpointTensor(tensor, descriptor, shard)

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shards(folder: Path) -> dict[str, set[str]]:
    """Shard files, and the tensors that the index says are in each; a single file goes first, as in transformers."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return {WEIGHTS: set()}
    if not index.is_file():
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        hint = "; it has pickled weights only: save it again with safe_serialization" if pickled else ""
        raise CheckpointError(f"{folder}: neither {WEIGHTS} nor {INDEX}{hint}")
    try:
        text = index.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{index}: {error.strerror}") from None
    match parse_json(text, str(index), CheckpointError):
        case {"weight_map": dict(weight_map)} if weight_map:
            shards: dict[str, set[str]] = {}
            for name, shard in weight_map.items():
                if not isinstance(shard, str) or not PLAIN_NAME.fullmatch(shard):
                    raise CheckpointError(
                        f"{index}: shard {shorten(shard)} of tensor {shorten(name)} is not a plain file name"
                    )
                shards.setdefault(shard, set()).add(name)
            return shards
        case _:
            raise CheckpointError(f"{index}: no weight_map")
