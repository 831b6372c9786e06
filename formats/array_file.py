"""Named arrays in a safetensors file, written at once and mapped when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout, read_header

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
