"""What rounding made of a model, for the packer to store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.manifest import RoundingEntry
from mxspec.formats.tiles import PackStatistics

_PIECE = 4 << 20  # bytes handed on at once


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """Tiles uint8[n_tiles, row_tile_bytes] in a file, what rounding did to them, and why it was to nearest, if so.

    `few` is the number of experts that were rounded by other tokens than their own as well.
    """

    path: Path
    statistics: PackStatistics
    fallback: str | None = None
    few: int = 0

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """The tiles, some rows at a time."""
        tiles: NDArray[np.uint8] = np.load(self.path, mmap_mode="r")
        step = max(1, _PIECE // tiles.shape[1])
        for begin in range(0, len(tiles), step):
            yield np.array(tiles[begin : begin + step])


@dataclass(frozen=True, slots=True)
class RoundedModel:
    """How a model's matrices are rounded; `matrices` by parameter name are rounded already, others as they are packed.

    `search`: the scale of a block is the best of three. `entry` is the manifest's, None where all is to nearest.
    """

    entry: RoundingEntry | None = None
    search: bool = False
    matrices: Mapping[str, RoundedMatrix] = field(default_factory=dict)


TO_NEAREST = RoundedModel()
