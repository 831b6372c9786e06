"""Norms along the last axis as one node, for models that compute theirs in several operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + epsilon) * weight."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return _emit("RMSNormalization", x, self.weight, self._epsilon)


class LayerNorm(nn.Module):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) * weight; a weight [heads, size] is for heads in the third axis."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon
        if weight.ndim > 1:
            self.ones = nn.Buffer(torch.ones(weight.shape[-1]))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 1:
            return _emit("LayerNormalization", x, self.weight, self._epsilon)
        return _emit("LayerNormalization", x, self.ones, self._epsilon) * self.weight


def _emit(operator: str, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.onnx.ops.symbolic(
        operator, (x, weight), {"axis": -1, "epsilon": epsilon}, dtype=x.dtype, shape=x.shape
    )
