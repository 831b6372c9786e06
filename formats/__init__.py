"""MX formats, kernel tiles, and the bundle on disk."""

from mxspec.formats.mx import dequantize, quantize
from mxspec.formats.tiles import (
    PackedMatrix,
    PackStatistics,
    pack,
    pack_fp16,
    pack_values,
    quantize_pack,
    unpack,
    unpack_fp16,
    unpack_values,
)
from mxspec.formats.weight_format import packed_shape

__all__ = [
    "PackStatistics",
    "PackedMatrix",
    "dequantize",
    "pack",
    "pack_fp16",
    "pack_values",
    "packed_shape",
    "quantize",
    "quantize_pack",
    "unpack",
    "unpack_fp16",
    "unpack_values",
]
