"""Positions for models that count their tokens themselves: the call's positions replace the model's count."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Positions:
    """The positions of the traced call's tokens in their texts, int64[1, tokens]."""

    def __init__(self) -> None:
        self.ids: Tensor | None = None


class LearnedPositions(nn.Module):
    """Replaces a model's table: its rows, float32[1, tokens, width], at the call's positions plus `offset`."""

    def __init__(self, weight: nn.Parameter, offset: int, positions: Positions) -> None:
        super().__init__()
        self.weight = weight
        self._offset = offset
        self._positions = positions

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._positions.ids is not None
        return nn.functional.embedding(self._positions.ids + self._offset, self.weight)


class ComputedPositions(nn.Module):
    """Replaces sinusoids: rows of a computed table, at the call's positions."""

    def __init__(self, sinusoids: Tensor, positions: Positions) -> None:
        super().__init__()
        self.sinusoids = nn.Buffer(sinusoids)
        self._positions = positions

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._positions.ids is not None
        return nn.functional.embedding(self._positions.ids, self.sinusoids)
