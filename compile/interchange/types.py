"""Store a bundle's tensors in standard ONNX types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from mxspec.formats.manifest import TensorEntry
from mxspec.formats.tiles import blocks
from mxspec.formats.weight_format import FP16_TILES, stored_as, weight_format

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
