"""What rounding keeps on disk while it runs: the tiles of rounded matrices, and the inputs of the layer it is at.

A layer is done when its `layer-N.json` is there. It is renamed into place after the layer's tiles and the inputs of the
next layer were written, so that a run that was killed goes on at its layer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.weights.rounding.rounded import RoundedMatrix
from mxspec.formats.tiles import PackStatistics
from mxspec.formats.weight_format import packed_shape


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
