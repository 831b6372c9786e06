"""Round the experts of a layer, one after the other: each by the inputs of the tokens that chose it.

A router sends a token to a few experts, so each expert has moments of its own. What its second matrix reads is computed
from its first, rounded already. An expert that few tokens chose also takes some of the layer's other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP, ExpertMatrix
from mxspec.compile.checkpoint.tensors.derived import SelectedRows
from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.weights.rounding.matrix import MatrixSource, round_matrix
from mxspec.compile.weights.rounding.moments import Moments, factor_of
from mxspec.compile.weights.rounding.store import RoundedMatrix, RoundingStore
from mxspec.formats.tiles import PackStatistics
from mxspec.formats.weight_format import TILE_ROWS

FEW = 256  # tokens; an expert with fewer takes as many others of the layer as it lacks
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """A layer's experts: transformers' module, and its two parameters by the names GATE_UP and DOWN."""

    module: nn.Module
    parameters: Mapping[str, str]
    matrices: Mapping[str, ExpertMatrix]

    def weight(self, name: str, expert: int) -> Tensor:
        """The matrix [rows, k] of an expert, a view of the parameter."""
        values: Tensor = getattr(self.module, name)[expert]
        return values.T if self.matrices[name].transposed else values

    def gated(self, expert: int, rows: Tensor) -> Tensor:
        """What the second matrix of an expert reads where the first reads rows float32[n, k]."""
        return self._apply(self._gate_up(expert, rows))

    def pull(self, expert: int, rows: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """`gated`, and the gradients of what the first matrix gives, from those of what the second gives."""
        values = self._gate_up(expert, rows).requires_grad_()
        with torch.enable_grad():
            read = self._apply(values)
        (pulled,) = torch.autograd.grad(read, values, gradients @ self.weight(DOWN, expert))
        return read.detach(), pulled

    def _gate_up(self, expert: int, rows: Tensor) -> Tensor:
        bias: Tensor | None = getattr(self.module, f"{GATE_UP}_bias", None)
        return nn.functional.linear(rows, self.weight(GATE_UP, expert), None if bias is None else bias[expert])

    def _apply(self, values: Tensor) -> Tensor:
        apply: Any = self.module._apply_gate
        gated: Tensor = apply(values)
        return gated


@dataclass(frozen=True, slots=True)
class ExpertsInputs:
    """What a layer's experts read: rows float32[tokens, k] of the rounded and of the exact stream, and which experts
    each token of the rounded stream chose, int64[tokens, top_k]."""

    rounded: Floats
    exact: Floats
    chosen: NDArray[np.int64]

    def tokens_of(self, expert: int) -> tuple[NDArray[np.int64], bool]:
        """The tokens to round an expert by, and whether others than its own are among them."""
        own = np.flatnonzero((self.chosen == expert).any(axis=1))
        if len(own) >= FEW:
            return own, False
        others = np.linspace(0, len(self.chosen) - 1, min(FEW, len(self.chosen))).astype(np.int64)
        return np.union1d(own, others), True


class _Rounding:
    """One of the two parameters while its experts are rounded."""

    def __init__(self, parameter: str, matrix: ExpertMatrix, source: MatrixSource, store: RoundingStore) -> None:
        self._parameter, self._matrix, self._source, self._store = parameter, matrix, source, store
        self._tiles = store.create_tiles(parameter, source.format_name, *matrix.shape)
        self._statistics, self._reasons = PackStatistics(), dict[str, int]()

    def round(self, expert: int, moments: Moments, weight: Tensor) -> None:
        """Round one expert's matrix, whose values also go to `weight` [rows, k]."""
        factor, reason = factor_of(moments)
        if reason is not None:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        rows, per_expert = self._matrix.rows, self._matrix.rows // TILE_ROWS
        own = SelectedRows(self._source.tensor, np.arange(expert * rows, (expert + 1) * rows))
        tiles = self._tiles[expert * per_expert : (expert + 1) * per_expert]
        self._statistics += round_matrix(replace(self._source, tensor=own), factor, tiles, weight.numpy())

    def result(self, few: int) -> RoundedMatrix:
        """The whole parameter."""
        said = (f"{reason} (of {count} of {self._matrix.experts} experts)" for reason, count in self._reasons.items())
        path = self._store.tiles_path(self._parameter)
        return RoundedMatrix(path, self._statistics, "; ".join(said) or None, few)


def round_experts(
    experts: LayerExperts,
    inputs: ExpertsInputs,
    sources: Tensors,
    formats: Mapping[str, str],
    store: RoundingStore,
    moments_of: Callable[[int], Moments],
) -> dict[str, RoundedMatrix]:
    """Round a loaded layer's experts in the parameters that have a format, in the module as well.

    `moments_of` gives empty moments of k inputs, with a place for their drift.
    """
    parameters = experts.parameters
    rounding = {
        name: _Rounding(
            parameter,
            experts.matrices[name],
            MatrixSource(sources[parameter], transpose=False, format_name=formats[parameter]),
            store,
        )
        for name, parameter in parameters.items()
        if parameter in formats
    }
    few = 0
    for expert in range(experts.matrices[GATE_UP].experts):
        tokens, shared = inputs.tokens_of(expert)
        few += shared
        rows = torch.from_numpy(inputs.rounded[tokens])
        if GATE_UP in rounding:
            moments = moments_of(rows.shape[1])
            moments.add(rows, torch.from_numpy(inputs.exact[tokens]))
            rounding[GATE_UP].round(expert, moments, experts.weight(GATE_UP, expert))
        if DOWN in rounding:
            read = experts.gated(expert, rows)
            moments = Moments(read.shape[1])
            moments.add(read)
            rounding[DOWN].round(expert, moments, experts.weight(DOWN, expert))
    return {parameters[name]: one.result(few) for name, one in rounding.items()}
