"""The hidden states that enter some of a model's layers, taken while the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mxspec.compile.trace.layers import layers_of


class Taps:
    """Takes the states that enter `layers`, numbered from 0."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        """Raises UnsupportedModelError for a model without a list of its layers."""
        self.layers = tuple(layers)
        self._modules = layers_of(model, model.config) if layers else []
        self._found: dict[int, Tensor] = {}

    @contextmanager
    def taking(self) -> Iterator[None]:
        """In this block, each call of the model leaves its states here."""
        hooks = [
            self._modules[layer].register_forward_pre_hook(partial(self._take, layer), with_kwargs=True)
            for layer in self.layers
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def states(self) -> Tensor:
        """Those of the last call, one layer's after the other: float32[tokens, layers * hidden_size]."""
        return torch.cat([self._found[layer] for layer in self.layers], dim=-1).squeeze(0)

    def _take(self, layer: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._found[layer] = arguments[0] if arguments else named["hidden_states"]
