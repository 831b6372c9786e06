"""Random weights in packed form, about as large as trained ones, for benchmarks to read and decode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.weight_format import WEIGHT_FORMATS, packed_shape

SCALE_BYTE = 118  # 2^-9: random E3M2 elements then have about the size of trained weights
WEIGHT_SIZE = 0.02  # standard deviation of random fp16 weights
# Of a mixture's embeddings: larger than all that random layers add to the hidden states, part of which all tokens of a
# text share. So tokens choose their experts independently; with small embeddings, eight tokens of OLMoE's shape chose
# 14 experts of a layer, and not the 42 of 64 that trained routers, which are balanced, choose about.
MIXTURE_EMBEDDING_SIZE = 1.0


def random_halves(shape: tuple[int, ...], rng: np.random.Generator, size: float = WEIGHT_SIZE) -> NDArray[np.float16]:
    """float16 of any shape, with a standard deviation of `size`."""
    return (rng.standard_normal(shape, np.float32) * size).astype(np.float16)


def random_tiles(weight_format: str, n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """uint8[n_tiles, row_tile_bytes] of n rows by k columns."""
    rows, width = packed_shape(weight_format, n, k)
    table = WEIGHT_FORMATS[weight_format]
    if table.element is None:
        return random_halves((rows, width // 2), rng).view(np.uint8)
    tiles = rng.integers(0, 256, (rows, width), np.uint8)
    tiles[:, width // table.tile_bytes * table.code_bytes :] = SCALE_BYTE  # after the codes of a row tile
    return tiles
