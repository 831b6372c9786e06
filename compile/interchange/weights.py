"""A bundle's tensors in standard ONNX types: how each is stored; the file, written some rows of a matrix at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mxspec.compile.progress import Advance
from mxspec.formats.arrays import as_bits
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import TensorEntry
from mxspec.formats.safetensors_file import Layout, SafetensorsWriter
from mxspec.formats.tiles import blocks, unpack, unpack_fp16
from mxspec.formats.weight_format import (
    BLOCK,
    FP16_TILES,
    TILE_ROWS,
    WEIGHT_FORMATS,
    packed_shape,
    stored_as,
    weight_format,
)

PIECE_WEIGHTS = 4 << 20  # of a matrix, unpacked at a time
PIECE_BYTES = 8 << 20  # of any other tensor, copied at a time

Bytes = NDArray[np.uint8]

Scales = Literal["e8m0", "float32"]

OPSET = 21
"""Of files without types that came later: the first whose DequantizeLinear has blocks."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """An MX element in ONNX: its type, the first opset whose DequantizeLinear supports it, and a factor 2^exponent.

    A code means value(code) * 2^exponent: INT8 is -128 to 127 in ONNX, -2 to 127/64 in MX.
    """

    dtype: ir.DataType
    opset: int
    exponent: int = 0


ELEMENT_TYPES: Mapping[str, ElementType] = {
    "int8": ElementType(ir.DataType.INT8, 21, exponent=-6),
    "e2m1": ElementType(ir.DataType.FLOAT4E2M1, 23),
    "e3m2": ElementType(ir.DataType.FLOAT6E3M2, 28),
    "e2m3": ElementType(ir.DataType.FLOAT6E2M3, 28),
}
SCALE_TYPES: Mapping[Scales, tuple[ir.DataType, int]] = {
    "float32": (ir.DataType.FLOAT, 21),
    "e8m0": (ir.DataType.FLOAT8E8M0, 24),
}
_FILE_DTYPES = {
    ir.DataType.INT8: "I8",
    ir.DataType.FLOAT: "F32",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.FLOAT8E8M0: "F8_E8M0",
}


@dataclass(frozen=True, slots=True)
class StandardTensor:
    """A tensor of the standard model: its ONNX type and shape, and its type and shape in the weights file.

    There, types of less than a byte are a stream of bits, beginning with the lowest, with the type U8.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]
    file_dtype: str
    file_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix [n, k] of the standard model: codes with scales, or float16 values without scales."""

    values: StandardTensor
    scales: StandardTensor | None

    @property
    def tensors(self) -> tuple[StandardTensor, ...]:
        """The matrix's tensors, in the order of the weights file."""
        return (self.values,) if self.scales is None else (self.values, self.scales)


def store_matrix(tensor: TensorEntry, scales: Scales) -> StoredMatrix:
    """How a packed matrix of a bundle is stored."""
    n, k = tensor.shape
    element = weight_format(tensor.format).element
    if element is None:
        return StoredMatrix(_stored(tensor.name, ir.DataType.FLOAT16, (n, k)), None)
    values = _stored(tensor.name, ELEMENT_TYPES[element].dtype, (n, k))
    return StoredMatrix(values, _stored(f"{tensor.name}.scales", SCALE_TYPES[scales][0], (n, blocks(k))))


def store_plain(tensor: TensorEntry, dtype: ir.DataType) -> StandardTensor:
    """How any other tensor of a bundle is stored: unchanged."""
    return StandardTensor(tensor.name, dtype, tensor.shape, *stored_as(tensor.format, tensor.shape))


def opset_of(formats: set[str], scales: Scales) -> int:
    """The first opset with the types of matrices in these formats."""
    elements = [weight_format(name).element for name in formats - {FP16_TILES}]
    needed = [ELEMENT_TYPES[element].opset for element in elements if element is not None]
    return max([OPSET, *needed, *([SCALE_TYPES[scales][1]] if needed else [])])


def _stored(name: str, dtype: ir.DataType, shape: tuple[int, int]) -> StandardTensor:
    if dtype in _FILE_DTYPES:
        return StandardTensor(name, dtype, shape, _FILE_DTYPES[dtype], shape)
    n, k = shape
    return StandardTensor(name, dtype, shape, "U8", (-(-n * k * dtype.bitwidth // 8),))


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
