"""How each format of the manifest's tensor table lies in a safetensors file: its dtype and its stored shape."""

from __future__ import annotations

# Packed matrices: tiles of 16 output rows, blocks of 32 along the reduction dimension.
ROW_TILE = 16
K_BLOCK = 32
_TILE_BYTES = {  # bytes of one tile of 16 rows × 32 k, scales included
    "fp16_tiles": 2 * ROW_TILE * K_BLOCK,
    "mxfp6_e3m2": ROW_TILE * K_BLOCK * 6 // 8 + ROW_TILE,
    "mxfp6_e2m3": ROW_TILE * K_BLOCK * 6 // 8 + ROW_TILE,
}
PACKED_FORMATS = frozenset(_TILE_BYTES)

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


def packed_shape(n: int, k: int, packed_format: str) -> tuple[int, int]:
    """Stored shape (row tiles, bytes a row tile) of an n × k matrix, dtype uint8."""
    return -(-n // ROW_TILE), -(-k // K_BLOCK) * _TILE_BYTES[packed_format]
