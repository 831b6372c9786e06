"""The block types of GGUF: the layout of a block, and its float32 values.

Each layout is the C structure in ggml's ggml-common.h, field by field; each function has the order of operations of
ggml's dequantize_row_*, so that its values equal llama.cpp's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[Any]  # of a structured dtype, one entry a block
Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockType:
    """The number of elements in a block, its fields, and their conversion to values float32[blocks, elements]."""

    name: str
    elements: int
    layout: np.dtype[Any]
    values: Callable[[Blocks], Values]

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.layout.itemsize

    def decode(self, data: NDArray[np.uint8]) -> Values:
        """Values float32[rows, k] of uint8[rows, bytes of a row]."""
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # NaN and infinity are found, and named, where they are packed
            return self.values(data.reshape(-1).view(self.layout)).reshape(len(data), -1)


def planes(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Fields of `bits` bits, uint8[n, groups, run] to uint8[n, elements]: the lowest of a run's bytes, then the next.

    >>> planes(np.array([[[0x21, 0x43]]], np.uint8), 4)
    array([[1, 3, 2, 4]], dtype=uint8)
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = packed[:, :, None, :] >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)


def _grouped(packed: NDArray[np.uint8], run: int) -> NDArray[np.uint8]:
    return packed.reshape(len(packed), -1, run)


def _scale(block: Blocks, name: str = "d") -> Values:
    return block[name].astype(np.float32)[:, None]


def _signed(codes: NDArray[np.uint8], zero: int) -> Values:
    return codes.astype(np.float32) - np.float32(zero)


def _high_bit(block: Blocks) -> NDArray[np.uint8]:
    """The fifth bits of 32 elements, in their order."""
    return np.unpackbits(block["qh"], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(block: Blocks) -> Values:
    return _scale(block) * _signed(planes(_grouped(block["qs"], 16), 4), 8)


def _q4_1(block: Blocks) -> Values:
    return _scale(block) * _signed(planes(_grouped(block["qs"], 16), 4), 0) + _scale(block, "m")


def _q5_0(block: Blocks) -> Values:
    return _scale(block) * _signed(planes(_grouped(block["qs"], 16), 4) | _high_bit(block), 16)


def _q5_1(block: Blocks) -> Values:
    return _scale(block) * _signed(planes(_grouped(block["qs"], 16), 4) | _high_bit(block), 0) + _scale(block, "m")


def _q8_0(block: Blocks) -> Values:
    return block["qs"].astype(np.float32) * _scale(block)


def _runs(codes: Values, scales: Values) -> Values:
    """Codes multiplied by the scale of their run."""
    return scales[:, :, None] * codes.reshape(*scales.shape, -1)


def _q2_k(block: Blocks) -> Values:
    codes = _signed(planes(_grouped(block["qs"], 32), 2), 0)
    low, high = (part.astype(np.float32) for part in (block["scales"] & 15, block["scales"] >> 4))
    return _runs(codes, _scale(block) * low) - (_scale(block, "dmin") * high)[:, :, None]


def _q3_k(block: Blocks) -> Values:
    codes = planes(_grouped(block["qs"], 32), 2) | planes(_grouped(block["hmask"], 32), 1) << np.uint8(2)
    low = planes(block["scales"][:, None, :8], 4)
    high = planes(block["scales"][:, None, 8:], 2)
    return _runs(_signed(codes, 4), _scale(block) * _signed(low | high << np.uint8(4), 32))


def _scales_and_minima(packed: NDArray[np.uint8]) -> tuple[Values, Values]:
    """Eight scales and eight minima of six bits each in twelve bytes.

    Bytes 0 to 3 hold scales 0 to 3, bytes 4 to 7 minima 0 to 3, each with two high bits of scales and minima 4 to 7;
    bytes 8 to 11 hold the low four bits of scales 4 to 7 below those of minima 4 to 7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_values(block: Blocks, codes: NDArray[np.uint8]) -> Values:
    scales, minima = _scales_and_minima(block["scales"])
    return _runs(_signed(codes, 0), _scale(block) * scales) - (_scale(block, "dmin") * minima)[:, :, None]


def _q4_k(block: Blocks) -> Values:
    return _k_values(block, planes(_grouped(block["qs"], 32), 4))


def _q5_k(block: Blocks) -> Values:
    high = planes(_grouped(block["qh"], 32), 1)
    return _k_values(block, planes(_grouped(block["qs"], 32), 4) | high << np.uint8(4))


def _q6_k(block: Blocks) -> Values:
    codes = planes(_grouped(block["ql"], 64), 4) | planes(_grouped(block["qh"], 32), 2) << np.uint8(4)
    return _runs(_signed(codes, 32), _scale(block) * block["scales"].astype(np.float32))


# ggml's kvalues_iq4nl: sixteen levels, not evenly spaced
_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _iq4_nl(block: Blocks) -> Values:
    return _scale(block) * _LEVELS[planes(_grouped(block["qs"], 16), 4)]


def _iq4_xs(block: Blocks) -> Values:
    low = (block["scales_l"][:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    high = block["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high.astype(np.uint8) << np.uint8(4)).astype(np.float32) - np.float32(32)
    return _runs(_LEVELS[planes(_grouped(block["qs"], 16), 4)], _scale(block) * scales)


# E2M1 doubled, and half of the scale for it: exact either way
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _mxfp4(block: Blocks) -> Values:
    scale = np.ldexp(np.float32(1), block["e"].astype(np.int32) - 128)
    return scale[:, None].astype(np.float32) * _E2M1_DOUBLED[planes(_grouped(block["qs"], 16), 4)]


def _float(block: Blocks) -> Values:
    return block["v"].astype(np.float32).reshape(-1, 1)


def _bfloat(block: Blocks) -> Values:
    return (block["v"].astype(np.uint32) << 16).view(np.float32).reshape(-1, 1)


_Field = tuple[str, str] | tuple[str, str, int]


def _type(name: str, elements: int, values: Callable[[Blocks], Values], *fields: _Field) -> BlockType:
    """A type with consecutive fields, without padding."""
    layout: np.dtype[Any] = np.dtype(
        [(field[0], field[1], *((field[2:],) if len(field) == 3 else ())) for field in fields]
    )
    return BlockType(name, elements, layout, values)


_D, _M, _MIN = ("d", "<f2"), ("m", "<f2"), ("dmin", "<f2")

BLOCK_TYPES = {  # by ggml's number; bytes of a block: 4, 2, 18, 20, 22, 24, 34, 84, 110, 144, 176, 210, 18, 136, 2, 17
    0: _type("F32", 1, _float, ("v", "<f4")),
    1: _type("F16", 1, _float, ("v", "<f2")),
    2: _type("Q4_0", 32, _q4_0, _D, ("qs", "u1", 16)),
    3: _type("Q4_1", 32, _q4_1, _D, _M, ("qs", "u1", 16)),
    6: _type("Q5_0", 32, _q5_0, _D, ("qh", "u1", 4), ("qs", "u1", 16)),
    7: _type("Q5_1", 32, _q5_1, _D, _M, ("qh", "u1", 4), ("qs", "u1", 16)),
    8: _type("Q8_0", 32, _q8_0, _D, ("qs", "i1", 32)),
    10: _type("Q2_K", 256, _q2_k, ("scales", "u1", 16), ("qs", "u1", 64), _D, _MIN),
    11: _type("Q3_K", 256, _q3_k, ("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D),
    12: _type("Q4_K", 256, _q4_k, _D, _MIN, ("scales", "u1", 12), ("qs", "u1", 128)),
    13: _type("Q5_K", 256, _q5_k, _D, _MIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
    14: _type("Q6_K", 256, _q6_k, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
    20: _type("IQ4_NL", 32, _iq4_nl, _D, ("qs", "u1", 16)),
    23: _type("IQ4_XS", 256, _iq4_xs, _D, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)),
    30: _type("BF16", 1, _bfloat, ("v", "<u2")),
    39: _type("MXFP4", 32, _mxfp4, ("e", "u1"), ("qs", "u1", 16)),
}

TYPES_BY_NAME = {kind.name: kind for kind in BLOCK_TYPES.values()}

UNSUPPORTED_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
    41: "Q1_0", 42: "Q2_0",
}  # fmt: skip
