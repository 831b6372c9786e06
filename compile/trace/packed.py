"""Modules with packed weights while a model is traced, and the sources of the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mxspec.formats.weight_format import Activations, packed_shape


@dataclass(frozen=True, slots=True)
class MatmulSource:
    """The source of a packed weight [n, k], its stored format, and the type of its product's activations."""

    parameter: str
    format: str
    n: int
    k: int
    transpose: bool
    activations: Activations = "int16"

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a PackedMatMul node; int16 activations are the default and need none."""
        asked = {} if self.activations == "int16" else {"activations": self.activations}
        return {"K": self.k, "N": self.n, "format": self.format, **asked}


class PackedModule(nn.Module):
    """A module whose node reads packed weights: uint8 tile initializers, here without values, by their `sources`."""

    def __init__(self, sources: Mapping[str, MatmulSource]) -> None:
        super().__init__()
        self.sources = dict(sources)
        for name, source in sources.items():
            shape = packed_shape(source.format, source.n, source.k)
            setattr(self, name, nn.Buffer(torch.empty(shape, dtype=torch.uint8, device="meta")))

    @property
    @abstractmethod
    def attributes(self) -> dict[str, Any]:
        """The attributes of its node, which depend on the formats."""
