"""Positions for models that count their tokens themselves: they are those of the call, whatever a model would count."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Positions:
    """Where the tokens of the traced call stand in their texts, int64[1, tokens]."""

    def __init__(self) -> None:
        self.ids: Tensor | None = None


class LearnedPositions(nn.Module):
    """In the place of a model's table: its rows, float32[1, tokens, width], at the call's positions and `offset`."""

    def __init__(self, weight: nn.Parameter, offset: int, positions: Positions) -> None:
        super().__init__()
        self.weight = weight
        self._offset = offset
        self._positions = positions

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._positions.ids is not None
        return nn.functional.embedding(self._positions.ids + self._offset, self.weight)


class ComputedPositions(nn.Module):
    """In the place of sinusoids: rows of a table that no checkpoint needs to hold, at the call's positions."""

    def __init__(self, sinusoids: Tensor, positions: Positions) -> None:
        super().__init__()
        self.sinusoids = nn.Buffer(sinusoids)
        self._positions = positions

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._positions.ids is not None
        return nn.functional.embedding(self._positions.ids, self.sinusoids)
