"""The module through which a graph is traced: its inputs and outputs, with their names, follow the graph contract."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mxspec.formats.caches import CacheKind

# Sizes of an example call: all different and above 1, so that the exporter takes none for a constant.
SEQUENCES, TOKENS, ROWS, SLOTS, CAPACITY, SOURCE_CAPACITY = 2, 5, 3, 7, 11, 13

Caches = list[tuple[Tensor, Tensor]]  # keys and values of each layer


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The caches of all layers, each [slots, kv_heads, capacity, entry] of a kind.

    A model is traced with caches of float32; the kind is set in the graph (`set_caches`).
    """

    layers: int
    kv_heads: int
    head_size: int
    kind: CacheKind

    def examples(self, capacity: int = CAPACITY) -> Caches:
        """Caches of an example call, of zeros."""
        size = (SLOTS, self.kv_heads, capacity, self.head_size)
        return [(torch.zeros(size), torch.zeros(size)) for _ in range(self.layers)]

    def names(self, kind: str) -> list[str]:
        """The names of the caches in a graph, such as past_key.0 for `past`."""
        return [f"{kind}_{what}.{layer}" for layer in range(self.layers) for what in ("key", "value")]


class GraphInterface(nn.Module):
    """Wraps the model in the inputs and outputs of the graph contract, whose names are listed in order."""

    def __init__(self, model: PreTrainedModel, caches: CacheShape, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model = model
        self.caches = caches
        self.inputs = inputs
        self.outputs = outputs

    @abstractmethod
    def arguments(self) -> tuple[object, ...]:
        """The arguments of an example call."""

    @abstractmethod
    def dimensions(self) -> tuple[object, ...]:
        """The symbolic dimensions of the arguments, by their axes."""
