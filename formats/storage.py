"""How each format of the manifest's tensor table lies in a safetensors file: its dtype and its stored shape."""

from __future__ import annotations

from mxspec.formats.weight_format import WEIGHT_FORMATS, packed_shape

PLAIN_DTYPES = {
    "float32": "F32",
    "fp16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def stored_as(format_name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The safetensors dtype and shape of a tensor of logical `shape`. Raises ValueError for what cannot be stored."""
    if format_name in PLAIN_DTYPES:
        return PLAIN_DTYPES[format_name], shape
    if format_name not in WEIGHT_FORMATS:
        raise ValueError(f"unknown format {format_name!r}")
    if len(shape) != 2:
        raise ValueError(f"a packed matrix has two dimensions, got shape {list(shape)}")
    n, k = shape
    return "U8", packed_shape(format_name, n, k)
