"""The hidden states at some places of a model, taken while the model runs.

Places are numbered as what the states enter: the n decoder layers from 0 on, then the final norm, n, and what follows
it, n + 1, the output matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from mxspec.compile.trace.layers import final_norm, layers_of


class Taps:
    """Takes the states at `places`."""

    def __init__(self, model: PreTrainedModel, places: Sequence[int]) -> None:
        """Raises UnsupportedModelError for a model whose layers, or whose final norm, are not found."""
        self.places = tuple(places)
        self._modules = layers_of(model, model.config) if places else []
        self._norm = len(self._modules)
        if places and max(places) >= self._norm:
            self._modules = [*self._modules, final_norm(model, model.config)]
        self._found: dict[int, Tensor] = {}

    @contextmanager
    def taking(self) -> Iterator[None]:
        """In this block, each call of the model leaves its states here."""
        hooks = [self._hook(place) for place in self.places]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def states(self) -> Tensor:
        """Those of the last call, one place's after the other: float32[tokens, places * hidden_size]."""
        return torch.cat([self._found[place] for place in self.places], dim=-1).squeeze(0)

    def _hook(self, place: int) -> RemovableHandle:
        if place > self._norm:
            return self._modules[self._norm].register_forward_hook(partial(self._take_given, place))
        return self._modules[place].register_forward_pre_hook(partial(self._take, place), with_kwargs=True)

    def _take(self, place: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._found[place] = arguments[0] if arguments else named["hidden_states"]

    def _take_given(self, place: int, module: nn.Module, arguments: tuple[Any, ...], given: Tensor) -> None:
        self._found[place] = given
