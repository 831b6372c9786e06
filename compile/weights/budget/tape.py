"""The inputs of a layer's products and experts, and the gradients of their outputs, in mapped files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float32]  # [windows, length, width]


class Tape:
    """Files in a separate folder; products that read the same tensor share its file."""

    def __init__(self, folder: Path, windows: int, length: int) -> None:
        self._folder, self._shape = folder, (windows, length)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._files: dict[str, NDArray[Any]] = {}
        self._first: dict[str, str] = {}  # by product: the first product with the same input
        self._read: dict[str, Tensor] = {}  # inputs in the current pass
        self._made: dict[str, Tensor] = {}
        self._routed: dict[str, tuple[Tensor, Tensor]] = {}

    def on_product(self, name: str, inputs: Tensor, outputs: Tensor) -> None:
        """Note a product [1, tokens, n] of inputs [1, tokens, k]."""
        self._read[name], self._made[name] = inputs, outputs

    def on_experts(self, name: str, inputs: Tensor, chosen: Tensor, weights: Tensor, outputs: Tensor) -> None:
        """Note what a layer's experts give together [tokens, n] of inputs [tokens, k] and a choice [tokens, top_k]."""
        self.on_product(name, inputs, outputs)
        self._routed[name] = chosen, weights

    @property
    def made(self) -> list[Tensor]:
        """The products of the current pass, and what experts give."""
        return list(self._made.values())

    def keep(self, window: int, rows: slice, gradients: Sequence[Tensor]) -> None:
        """End a pass over some tokens of a window: `gradients` are those of `made`."""
        seen: dict[tuple[int, tuple[int, ...]], str] = {}
        for (name, inputs), gradient in zip(self._read.items(), gradients, strict=True):
            self._first[name] = seen.setdefault((inputs.data_ptr(), tuple(inputs.shape)), name)
            if self._first[name] == name:
                self._write(f"inputs-{name}", window, rows, inputs)
            self._write(f"gradients-{name}", window, rows, gradient)
        for name, (chosen, weights) in self._routed.items():
            self._write(f"chosen-{name}", window, rows, chosen, np.int64)
            self._write(f"weights-{name}", window, rows, weights)
        for noted in (self._read, self._made, self._routed):
            noted.clear()

    def inputs(self, name: str) -> Values:
        """The inputs of a product, float32[windows, length, k]."""
        return self._files[f"inputs-{self._first[name]}"]

    def gradients(self, name: str) -> Values:
        """The gradients of a product's outputs, float32[windows, length, n]."""
        return self._files[f"gradients-{name}"]

    @property
    def tokens(self) -> int:
        """The tokens of all windows."""
        windows, length = self._shape
        return windows * length

    def chosen(self, name: str) -> NDArray[np.int64]:
        """The experts that each token chose, int64[windows, length, top_k]."""
        return self._files[f"chosen-{name}"]

    def weights(self, name: str) -> Values:
        """The weights of the chosen experts, float32[windows, length, top_k]."""
        return self._files[f"weights-{name}"]

    def remove(self) -> None:
        """Delete the files."""
        self._files.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, file: str, window: int, rows: slice, values: Tensor, kind: type[Any] = np.float32) -> None:
        found = values.detach().reshape(-1, values.shape[-1]).numpy()
        if file not in self._files:
            shape = (*self._shape, found.shape[-1])
            self._files[file] = np.lib.format.open_memmap(self._folder / f"{file}.npy", "w+", kind, shape)
        self._files[file][window, rows] = found
