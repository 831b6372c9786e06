"""Round a whole model, one decoder layer after the other, each with the outputs of the rounded layers before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mxspec.compile.checkpoint.mx_tensor import Source
from mxspec.compile.weights.rounding.forward import LayeredModel, Matrices
from mxspec.compile.weights.rounding.matrix import MatrixSource, round_matrix
from mxspec.compile.weights.rounding.moments import Factor, Moments, UnfactoredError
from mxspec.compile.weights.rounding.rounded import RoundedMatrix
from mxspec.compile.weights.rounding.store import RoundingStore
from mxspec.compile.weights.rounding.text import CalibrationText

Advance = Callable[[int], object]  # gets the number of multiplications done

WIDE_BYTES = 256 << 20  # of moments: matrices with more are rounded after their layer's others, in the same memory


@dataclass(slots=True)
class SharedMoments:
    """Moments of the inputs of several matrices; matrices that read the same tensor share their moments."""

    first: dict[str, str] = field(default_factory=dict)  # by matrix: the matrix whose moments it shares
    sums: dict[str, Moments] = field(default_factory=dict)
    _seen: dict[tuple[int, tuple[int, ...]], tuple[str, Tensor]] = field(default_factory=dict)

    def begin_window(self) -> None:
        """Call before each forward pass, whose tensors may have the addresses of earlier ones."""
        self._seen.clear()

    def add(self, name: str, inputs: Tensor) -> None:
        """Add inputs [..., k] of a matrix."""
        place = (inputs.data_ptr(), tuple(inputs.shape))
        if place in self._seen:
            self.first[name] = self._seen[place][0]
            return
        self._seen[place] = (name, inputs)  # held, so that no other tensor gets this address
        self.first[name] = name
        if name not in self.sums:
            self.sums[name] = Moments(inputs.shape[-1])
        self.sums[name].add(inputs)

    def groups(self) -> dict[str, list[str]]:
        """The groups of matrices that share moments, by their first matrix."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, first in self.first.items():
            found[first].append(name)
        return found


class ModelRounder:
    """Rounds the matrices of a model that have a format in `formats`, by parameter name."""

    def __init__(
        self,
        model: LayeredModel,
        sources: Mapping[str, Source],
        formats: Mapping[str, str],
        store: RoundingStore,
    ) -> None:
        self._model, self._sources, self._formats, self._store = model, sources, formats, store

    def work(self, tokens: int) -> int:
        """The approximate number of multiplications for rounding the whole model."""
        count = len(self._model.layers)
        return sum(self._forward_work(index, tokens) + self._matrix_work(index, tokens) for index in range(count + 1))

    def run(self, text: CalibrationText, advance: Advance) -> dict[str, RoundedMatrix]:
        """Rounded matrices by parameter name; resumes where the store of an earlier run ends."""
        rounded: dict[str, RoundedMatrix] = {}
        for index in range(len(self._model.layers) + 1):
            done = self._store.finished_layer(index)
            if done is None:
                done = self._round_layer(index, text, advance)
                self._store.finish_layer(index, done)
            else:
                advance(self._forward_work(index, text.tokens) + self._matrix_work(index, text.tokens))
            rounded |= done
        return rounded

    def _round_layer(self, index: int, text: CalibrationText, advance: Advance) -> dict[str, RoundedMatrix]:
        if index == 0:
            self._embed(text)
        inputs, last = self._store.inputs(index), index == len(self._model.layers)
        matrices = {name: module for name, module in self._model.matrices(index).items() if name in self._formats}
        parts = self._parts(matrices)
        step = self._forward_work(index, text.tokens) // ((1 + len(parts)) * len(inputs))
        done: dict[str, RoundedMatrix] = {}
        if last:
            moments = self._moments(index, inputs, matrices, lambda: advance(step))
            done = self._round_matrices(matrices, moments, write_back=False)
        else:
            with self._model.loaded(index):
                for part in parts:
                    moments = self._moments(index, inputs, part, lambda: advance(step))
                    done |= self._round_matrices(part, moments, write_back=True)
                outputs = self._store.create_inputs(index + 1, *inputs.shape)
                for window, hidden in enumerate(inputs):
                    outputs[window] = self._model.run(index, _tensor(hidden))[0].numpy()
                    advance(step)
        advance(self._matrix_work(index, text.tokens))
        return done

    def _parts(self, matrices: Matrices) -> list[Matrices]:
        """The matrices whose moments are in memory at the same time: the wide ones after the others."""
        wide: Matrices = {}
        narrow: Matrices = {}
        for name, module in matrices.items():
            _, k = MatrixSource.of(self._sources[name], module, self._formats[name]).shape
            (wide if 4 * k * k > WIDE_BYTES else narrow)[name] = module
        return [part for part in (narrow, wide) if part]

    def _embed(self, text: CalibrationText) -> None:
        inputs: NDArray[np.float32] | None = None
        for window, hidden in enumerate(self._model.embed(text.windows)):
            if inputs is None:
                inputs = self._store.create_inputs(0, len(text.windows), *hidden.shape[1:])
            inputs[window] = hidden[0].numpy()

    def _moments(
        self, index: int, inputs: NDArray[np.float32], wanted: Matrices, advance: Callable[[], object]
    ) -> SharedMoments:
        moments = SharedMoments()

        def add(name: str, values: Tensor) -> None:
            if name in wanted:
                moments.add(name, values)

        for hidden in inputs:
            moments.begin_window()
            self._model.run(index, _tensor(hidden), add)
            advance()
        moments.begin_window()
        return moments

    def _round_matrices(
        self, matrices: Matrices, moments: SharedMoments, *, write_back: bool
    ) -> dict[str, RoundedMatrix]:
        done: dict[str, RoundedMatrix] = {}
        groups = moments.groups() | {name: [name] for name in matrices if name not in moments.first}
        for first, names in groups.items():
            factor, fallback = factor_of(moments.sums.pop(first, None))
            for name in names:
                module = matrices[name]
                source = MatrixSource.of(self._sources[name], module, self._formats[name])
                tiles = self._store.create_tiles(name, source.format_name, *source.shape)
                weight = module.weight.numpy() if write_back else None
                statistics = round_matrix(source, factor, tiles, weight)
                done[name] = RoundedMatrix(self._store.tiles_path(name), statistics, fallback)
        return done

    def _forward_work(self, index: int, tokens: int) -> int:
        if index == len(self._model.layers):
            return 0
        return 2 * tokens * sum(module.weight.numel() for module in self._model.matrices(index).values())

    def _matrix_work(self, index: int, tokens: int) -> int:
        work = 0
        for name, module in self._model.matrices(index).items():
            if name in self._formats:
                n, k = MatrixSource.of(self._sources[name], module, self._formats[name]).shape
                work += k * k * (tokens // 2 + k // 3 + n)
        return work


def factor_of(moments: Moments | None) -> tuple[Factor | None, str | None]:
    """The factor, or the reason why there is none."""
    if moments is None:
        return None, "its inputs were not seen"
    try:
        return moments.factor(), None
    except UnfactoredError as error:
        return None, str(error)


def _tensor(hidden: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.array(hidden))[None]
