"""Rounded matrices, and what rounding keeps on disk while it runs: their tiles, and the inputs of the current layer.

A layer is done when its `layer-N.json` is there. It is renamed into place after the layer's tiles and the inputs of the
next layer were written, so that a run that was killed goes on at its layer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.manifest import RoundingEntry
from mxspec.formats.tiles import PackStatistics
from mxspec.formats.weight_format import packed_shape

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


class RoundingStore:
    """Files in a folder of their own, which is made if missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def create_tiles(self, parameter: str, format_name: str, n: int, k: int) -> NDArray[np.uint8]:
        """A mapped file for a matrix's tiles."""
        shape = packed_shape(format_name, n, k)
        return np.lib.format.open_memmap(self.tiles_path(parameter), "w+", np.uint8, shape)

    def create_inputs(self, name: str | int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A mapped file float32[windows, length, width] for what goes into a layer or a matrix."""
        return np.lib.format.open_memmap(self._inputs(name), "w+", np.float32, shape)

    def inputs(self, name: str | int) -> NDArray[np.float32]:
        """What goes into a layer or a matrix, as it was created."""
        values: NDArray[np.float32] = np.load(self._inputs(name), mmap_mode="r+")
        return values

    def finish_layer(self, layer: int, matrices: Mapping[str, RoundedMatrix]) -> None:
        """Say that a layer is done; its inputs are not needed any more."""
        done = {name: (asdict(one.statistics), one.fallback, one.few) for name, one in matrices.items()}
        beside = self.folder / f"layer-{layer}.new"
        with beside.open("w") as file:
            json.dump(done, file)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(self._layer(layer))
        for stream in ("exact", "rounded"):
            self.remove_inputs(f"{stream}-{layer}")

    def remove_inputs(self, name: str | int) -> None:
        """Delete what went into a layer or a matrix."""
        self._inputs(name).unlink(missing_ok=True)

    def finished_layer(self, layer: int) -> dict[str, RoundedMatrix] | None:
        """The matrices of a layer that is done, by parameter name; None for one that is not."""
        if not self._layer(layer).is_file():
            return None
        found = json.loads(self._layer(layer).read_text())
        return {
            name: RoundedMatrix(self.tiles_path(name), PackStatistics(**statistics), fallback, few)
            for name, (statistics, fallback, few) in found.items()
        }

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _layer(self, layer: int) -> Path:
        return self.folder / f"layer-{layer}.json"

    def _inputs(self, name: str | int) -> Path:
        return self.folder / f"inputs-{name}.npy"

    def tiles_path(self, parameter: str) -> Path:
        """Where a matrix's tiles lie."""
        return self.folder / f"{parameter}.npy"
