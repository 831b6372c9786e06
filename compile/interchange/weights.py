"""Stream a bundle's weights into the standard model's file, matrices a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.interchange.types import ELEMENT_TYPES, Scales
from mxspec.formats.arrays import as_bits
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import TensorEntry
from mxspec.formats.safetensors_file import Layout, SafetensorsWriter
from mxspec.formats.tiles import unpack, unpack_fp16
from mxspec.formats.weight_format import BLOCK, TILE_ROWS, WEIGHT_FORMATS, packed_shape, weight_format

PIECE_WEIGHTS = 4 << 20  # of a matrix, unpacked at a time
PIECE_BYTES = 8 << 20  # of any other tensor, copied at a time

Advance = Callable[[int], object]  # called with the bytes of the bundle that are done
Bytes = NDArray[np.uint8]


def write_weights(
    tensors: Iterable[tuple[TensorEntry, str]],
    source: Path,
    layout: Layout,
    path: Path,
    scales: Scales,
    advance: Advance,
) -> str:
    """Write the weights file of a model from tensors in files of the bundle `source`; return its SHA-256.

    Raises MxspecError.
    """
    with SafetensorsWriter(path, layout) as writer:
        for tensor, name in tensors:
            with (source / name).open("rb") as file:
                _write_tensor(tensor, file, writer, scales, advance)
        return writer.finish()


def _write_tensor(
    tensor: TensorEntry, file: BinaryIO, writer: SafetensorsWriter, scales: Scales, advance: Advance
) -> None:
    writer.begin(tensor.name)
    if tensor.format in WEIGHT_FORMATS:
        _write_matrix(tensor, file, writer, scales, advance)
        return
    for piece in _read(file, tensor.offset, tensor.bytes, PIECE_BYTES):
        writer.append(piece.data)
        advance(piece.nbytes)


def _write_matrix(
    tensor: TensorEntry, file: BinaryIO, writer: SafetensorsWriter, scales: Scales, advance: Advance
) -> None:
    (n, k), element = tensor.shape, weight_format(tensor.format).element
    found: list[Bytes | NDArray[np.float32]] = []
    for packed, rows in _row_tiles(tensor, file, n, k):
        if element is None:
            writer.append(np.ascontiguousarray(unpack_fp16(packed, rows, k)).data)
        else:
            codes, bytes_ = unpack(packed, rows, k, element)
            writer.append(as_bits(codes, ELEMENT_TYPES[element].dtype.bitwidth).data)
            found.append(convert_scales(tensor.name, codes, bytes_, ELEMENT_TYPES[element].exponent, scales))
        advance(packed.nbytes)
    if element is not None:
        writer.begin(f"{tensor.name}.scales")
        for piece in found:
            writer.append(piece.data)


def convert_scales(
    name: str, codes: Bytes, scales: Bytes, exponent: int, kind: Scales
) -> NDArray[np.uint8] | NDArray[np.float32]:
    """E8M0 scales [rows, blocks] times 2^exponent, as E8M0 bytes or as float32. Raises MxspecError naming the matrix.

    A block of zeros keeps the smallest scale of any value.
    """
    if kind == "float32":
        return np.ldexp(np.float32(1), scales.astype(np.int32) - 127 + exponent)
    shifted = scales.astype(np.int16) + exponent
    if (shifted < 0).any():
        used = np.logical_or.reduceat(codes != 0, np.arange(0, codes.shape[1], BLOCK), axis=1)
        if (used & (shifted < 0)).any():
            raise MxspecError(
                f"{name}: a block's scale is 2^{int(shifted[used].min()) - 127}, and E8M0 begins at 2^-127; "
                "write float32 scales (--scales float32)"
            )
    return np.maximum(shifted, 0).astype(np.uint8)


def _row_tiles(tensor: TensorEntry, file: BinaryIO, n: int, k: int) -> Iterator[tuple[Bytes, int]]:
    """Yield some row tiles at a time, with the number of matrix rows in them."""
    step = max(1, PIECE_WEIGHTS // k // TILE_ROWS) * TILE_ROWS
    tile_bytes = packed_shape(tensor.format, n, k)[1]
    rows = 0
    for piece in _read(file, tensor.offset, tensor.bytes, step // TILE_ROWS * tile_bytes):
        count = min(step, n - rows)
        yield piece.reshape(-1, tile_bytes), count
        rows += count


def _read(file: BinaryIO, offset: int, size: int, step: int) -> Iterator[Bytes]:
    file.seek(offset)
    for begin in range(0, size, step):
        yield np.frombuffer(file.read(min(step, size - begin)), np.uint8)
