"""The weight formats: one table, which everything else asks. docs/formats.md says what the bytes mean.

`fp16` is a plain float16 tensor, `fp16_tiles` a matrix in tiles. Users say "fp16" of a model and mean its matrices:
`named_by_user` is the one place that takes their word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from mxspec.formats.errors import did_you_mean

Activations = Literal["int16", "int8"]
ACTIVATIONS: tuple[Activations, ...] = get_args(Activations)
"""What products can make of their rows."""

TILE_ROWS = 16
"""Output rows of a tile."""
BLOCK = 32
"""Columns of a tile: values that share a scale (OCP MX v1.0, table 1)."""
FP16_TILES = "fp16_tiles"
USER_FP16 = "fp16"
"""What users call fp16_tiles."""
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
"""Tensors that are stored as they are: the safetensors dtype of each format."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a matrix is stored.

    `element` is None for plain float16 values. `code_bytes` and `scale_bytes` are those of a tile of 16 rows by 32
    columns. `native_id` is its number in both native libraries. `activations`: what a product can make of the rows
    that it multiplies with such weights, the default first; none for float16, whose rows stay float32.
    """

    name: str
    element: str | None
    bits: int
    code_bytes: int
    scale_bytes: int
    native_id: int
    activations: tuple[Activations, ...]

    @property
    def tile_bytes(self) -> int:
        """Bytes of 16 rows by 32 columns, scales included."""
        return self.code_bytes + self.scale_bytes

    @property
    def bits_a_weight(self) -> float:
        """Bits that a weight takes, scales included."""
        return self.tile_bytes * 8 / (TILE_ROWS * BLOCK)


WEIGHT_FORMATS: Mapping[str, WeightFormat] = {
    weight_format.name: weight_format
    for weight_format in (
        WeightFormat(FP16_TILES, None, 16, 1024, 0, 0, ()),
        WeightFormat("mxfp6_e3m2", "e3m2", 6, 384, 16, 1, ("int16",)),
        WeightFormat("mxfp6_e2m3", "e2m3", 6, 384, 16, 2, ("int16", "int8")),
        WeightFormat("mxfp4_e2m1", "e2m1", 4, 256, 16, 3, ("int16", "int8")),
        WeightFormat("mxint8", "int8", 8, 512, 16, 4, ("int16", "int8")),
    )
}
"""Every weight format by its name."""
ELEMENTS: Mapping[str, WeightFormat] = {
    weight_format.element: weight_format for weight_format in WEIGHT_FORMATS.values() if weight_format.element
}
"""The MX formats by the name of their element."""
USER_NAMES = (USER_FP16, *(name for name in WEIGHT_FORMATS if name != FP16_TILES))
"""The formats as recipes and commands list them."""


def weight_format(name: str) -> WeightFormat:
    """The format of a name. Raises ValueError naming the formats there are."""
    if name not in WEIGHT_FORMATS:
        raise _unknown("format", name, WEIGHT_FORMATS)
    return WEIGHT_FORMATS[name]


def format_of_element(element: str) -> WeightFormat:
    """The MX format of an element. Raises ValueError naming the elements there are."""
    if element not in ELEMENTS:
        raise _unknown("element", element, ELEMENTS)
    return ELEMENTS[element]


def named_by_user(name: str) -> str:
    """The name of the format that a user's word means. Raises ValueError naming the words there are."""
    if name == USER_FP16:
        return FP16_TILES
    if name not in WEIGHT_FORMATS:
        raise _unknown("format", name, USER_NAMES)
    return name


def taken_activations(format_name: str) -> tuple[Activations, ...]:
    """What may be asked for a model of this format, the default first: float16 takes its rows as they are, unasked."""
    return weight_format(format_name).activations or ("int16",)


def packed_shape(format_name: str, n: int, k: int) -> tuple[int, int]:
    """Shape (n_tiles, row_tile_bytes) of a packed n x k matrix. Raises ValueError."""
    if n < 1 or k < 1:
        raise ValueError(f"n and k: got {n} and {k}, expected at least 1")
    return -(-n // TILE_ROWS), -(-k // BLOCK) * weight_format(format_name).tile_bytes


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


def _unknown(what: str, name: str, known: Mapping[str, WeightFormat] | tuple[str, ...]) -> ValueError:
    return ValueError(f"{what}: got {name!r}, expected one of {', '.join(known)}{did_you_mean(str(name), known)}")
