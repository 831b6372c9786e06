"""What an export hands to the packer: a graph whose weights have no values yet, and where each of them comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Kind = Literal["matmul", "embedding", "float32", "constant"]

ROW_TILE = 16  # output rows in a tile of a packed matrix (docs: the packed layout of mxspec.formats)
K_BLOCK = 32  # entries of the reduction dimension that share a scale
CODE_BYTES = 6 * ROW_TILE * K_BLOCK // 8  # one tile of six-bit codes


def tile_shape(n: int, k: int, weight_format: str) -> tuple[int, int]:
    """Shape of the uint8 initializer that holds an n × k matrix in packed tiles: (row tiles, bytes a row tile)."""
    k_blocks = -(-k // K_BLOCK)
    block_bytes = 2 * ROW_TILE * K_BLOCK if weight_format == "fp16" else CODE_BYTES + ROW_TILE
    return -(-n // ROW_TILE), k_blocks * block_bytes


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One initializer of the graph and what must be written there.

    `matmul`: `sources` stacked along n (each but the last a multiple of 16 rows), stored as packed tiles of `format`;
    `transpose` says that a source is stored [k, n]. `embedding`: one source, stored as float16 of `shape`.
    `float32`: `sources` concatenated along the first axis. `constant`: no source, `value` is written as it is.
    """

    name: str
    kind: Kind
    format: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    transpose: bool = False
    value: npt.NDArray[np.generic] | None = field(default=None, compare=False, repr=False)

    @property
    def source(self) -> str | None:
        """The first source parameter, or None for a constant."""
        return self.sources[0] if self.sources else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the initializer in the graph."""
        if self.kind != "matmul":
            return self.shape
        n, k = self.shape
        return tile_shape(n, k, self.format)

    @property
    def stored_dtype(self) -> np.dtype[np.generic]:
        """Element type of the initializer in the graph."""
        if self.kind == "matmul":
            return np.dtype(np.uint8)
        if self.kind == "constant":
            assert self.value is not None
            return self.value.dtype
        return np.dtype(np.float16 if self.kind == "embedding" else np.float32)

    @property
    def stored_bytes(self) -> int:
        """Size of the initializer in the weights file."""
        return int(np.prod(self.stored_shape, dtype=np.int64)) * self.stored_dtype.itemsize


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A graph by the contract, its weights to be filled in, and the figures that the manifest needs.

    Every initializer without a value is in `weights`; small constants keep their values inside the graph.
    """

    model: ir.Model
    weights: list[WeightSpec]
    architecture: str
    layers: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    cache_dtype: str
