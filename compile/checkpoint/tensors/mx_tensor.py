"""A matrix that is MX in the checkpoint: codes and scales, in the layouts of two tools and of gpt-oss.

All store one uint8 row of codes and one uint8 row of E8M0 scales for each output; a scale s means 2^(s - 127), and
codes have the bits of OCP MX, sign first. They differ in names, and in the order of bits:

    nibbles         byte  b: code 2b in bits 0..3, code 2b+1 in bits 4..7
    little endian   bytes 3b, 3b+1, 3b+2 as one 24-bit number, the first byte lowest: code 4b+i in bits 6i..6i+5
    planes          byte  3b:   the high two bits of codes 4b..4b+3, code 4b in bits 6, 7 and code 4b+3 in bits 0, 1
                    byte  3b+1: the low four bits of codes 4b (bits 4..7) and 4b+1; byte 3b+2: of codes 4b+2 and 4b+3

The FP6 codes 1, 2, 3, 4 are the bytes 81 30 10 in little endian, and 00 12 34 in planes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.tensors.derived import DerivedTensor
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, Tensor
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.tiles import NAN_SCALE, dequantize
from mxspec.formats.weight_format import BLOCK, weight_format

Unpack = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]  # rows of bytes to rows of codes


def unpack_nibbles(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Four-bit codes, two a byte, the first in the low half."""
    return _interleave(rows & 15, rows >> 4)


def unpack_halves(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Four-bit codes of blocks of 32 in 16 bytes: the first half of a block in the low halves of its bytes."""
    blocks = rows.reshape(len(rows), -1, BLOCK // 2)
    return np.concatenate([blocks & 15, blocks >> 4], axis=2).reshape(len(rows), -1)


def unpack_little_endian(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Six-bit codes, four in three bytes, from the lowest bit upwards."""
    low, middle, high = rows[:, 0::3], rows[:, 1::3], rows[:, 2::3]
    return _interleave(low & 63, low >> 6 | (middle & 15) << 2, middle >> 4 | (high & 3) << 4, high >> 2)


def unpack_planes(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Six-bit codes, four in three bytes, the high two bits of all four before their low four bits."""
    tops, first, second = rows[:, 0::3], rows[:, 1::3], rows[:, 2::3]
    return _interleave(
        tops >> 6 << 4 | first >> 4,
        (tops >> 4 & 3) << 4 | first & 15,
        (tops >> 2 & 3) << 4 | second >> 4,
        (tops & 3) << 4 | second & 15,
    )


def _interleave(*parts: NDArray[Any]) -> NDArray[np.uint8]:
    codes = np.empty((*parts[0].shape, len(parts)), np.uint8)
    for index, part in enumerate(parts):
        codes[..., index] = part
    return codes.reshape(len(codes), -1)


@dataclass(frozen=True, slots=True)
class MxTensor(DerivedTensor):
    """A matrix [n, k] that is MX in the checkpoint; its values are the exact float32 of its codes.

    `base` has its codes and its name, `scales` its scales, both as rows of bytes; `unpack` makes codes of a row.
    """

    base: Tensor
    scales: Tensor
    format: str
    unpack: Unpack

    def __post_init__(self) -> None:
        """Check the two tensors' types and shapes. Raises CheckpointError."""
        for tensor in (self.base, self.scales):
            if tensor.dtype != "U8" or len(tensor.shape) != 2 or 0 in tensor.shape:
                found = f"{tensor.dtype}{list(tensor.shape)}"
                raise CheckpointError(f"{_where(tensor)} is {found}, expected U8[rows, bytes]")
        n, k = self.shape
        if k % BLOCK or self.base.shape[1] * 8 % weight_format(self.format).bits:
            raise CheckpointError(
                f"{_where(self.base)} has rows of {self.base.shape[1]} bytes, {k} codes of {self.format}; "
                f"expected a multiple of {BLOCK} codes"
            )
        if self.scales.shape != (n, k // BLOCK):
            raise CheckpointError(
                f"{_where(self.scales)} has shape {list(self.scales.shape)}, expected {[n, k // BLOCK]}: one scale for "
                f"each {BLOCK} codes of {self.base.name!r}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        n, row_bytes = self.base.shape
        return n, row_bytes * 8 // weight_format(self.format).bits

    @property
    def bytes(self) -> int:
        return self.base.bytes + self.scales.bytes

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def origins(self) -> frozenset[str]:
        return frozenset()

    @property
    def element(self) -> str:
        """The MX element of its codes."""
        element = weight_format(self.format).element
        assert element is not None
        return element

    @property
    def identity(self) -> tuple[int, ...]:
        return *self.base.identity, *self.scales.identity

    def read_codes(self, begin: int, end: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes uint8[rows, k] and scales uint8[rows, k / 32] of rows [begin, end). Raises CheckpointError for NaN."""
        codes, scales = self.unpack(self.base.read_bytes(begin, end)), self.scales.read_bytes(begin, end)
        if (scales == NAN_SCALE).any():
            row, block = np.argwhere(scales == NAN_SCALE)[0]
            raise CheckpointError(
                f"{_where(self.scales)} holds {NAN_SCALE}, the scale of NaN, at row {begin + row}, block {block}; "
                "the checkpoint is damaged"
            )
        return codes, scales

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        return dequantize(*self.read_codes(begin, end), self.element)

    def read_columns(self, begin: int, end: int) -> NoReturn:
        """Only of matrices [k, n], whose blocks would run along the wrong dimension. Raises UnsupportedModelError."""
        raise UnsupportedModelError(
            f"{_where(self.base)} belongs to a layer whose weight is transposed: its MX blocks run along the outputs, "
            "not along the inputs, and cannot be multiplied as they are"
        )


def rows_of_blocks(codes: CheckpointTensor, scales: CheckpointTensor) -> tuple[CheckpointTensor, CheckpointTensor]:
    """Codes [..., rows, blocks, bytes of a block] and scales [..., rows, blocks] as two matrices of rows.

    Raises CheckpointError if the shapes do not belong together.
    """
    if len(codes.shape) < 3 or codes.shape[-1] != BLOCK // 2 or scales.shape != codes.shape[:-1] or 0 in codes.shape:
        raise CheckpointError(
            f"{_where(codes)} has shape {list(codes.shape)} and its scales {list(scales.shape)}, expected "
            f"[..., rows, blocks, {BLOCK // 2}] and [..., rows, blocks]"
        )
    blocks = codes.shape[-2]
    rows = math.prod(codes.shape[:-2])
    return codes.reshaped(rows, blocks * codes.shape[-1]), scales.reshaped(rows, blocks)


def _where(tensor: Tensor) -> str:
    return f"tensor {tensor.name!r} of {tensor.shard}"
