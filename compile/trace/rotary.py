"""Rotary embedding: cosines and sines from tables computed at compile time.

ONNX Runtime's Cos and Sin give a value other bits where a row's end falls on another vector lane; a table does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mxspec.formats.errors import UnsupportedModelError

LENGTH_DEPENDENT = {"dynamic", "longrope"}  # their frequencies change with the sequence: no table can hold that


class RotaryTables(nn.Module):
    """Looks up the cosines and sines of a position: float32[context, rotary] each, a pair for each type of layer."""

    def __init__(self, rotary: nn.Module, context_length: int) -> None:
        super().__init__()
        rope_type = rotary.rope_type
        for kind in [None] if isinstance(rope_type, str) else rope_type:  # type: ignore[union-attr]
            positions = torch.arange(context_length)[None]
            arguments = () if kind is None else (kind,)
            cos, sin = rotary(torch.zeros(1), positions, *arguments)
            self.register_buffer(self._name("cos", kind), cos[0].contiguous())
            self.register_buffer(self._name("sin", kind), sin[0].contiguous())

    @staticmethod
    def _name(function: str, kind: str | None) -> str:
        return function if kind is None else f"{kind}_{function}"

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        cos, sin = (getattr(self, self._name(function, layer_type)) for function in ("cos", "sin"))
        return nn.functional.embedding(position_ids, cos), nn.functional.embedding(position_ids, sin)


def replace_rotary_modules(model: PreTrainedModel, context_length: int) -> None:
    """Put tables in the place of the rotary modules. Raises UnsupportedModelError for length-dependent types."""
    for path, module in list(model.named_modules()):
        rope_type = getattr(module, "rope_type", None)
        if rope_type is None or not type(module).__name__.endswith("RotaryEmbedding"):
            continue
        for kind in {rope_type} if isinstance(rope_type, str) else set(rope_type.values()):
            if kind in LENGTH_DEPENDENT:
                raise UnsupportedModelError(
                    f"{type(model).__name__} uses {kind!r} rotary embedding, whose frequencies depend on the sequence "
                    "length: it cannot be compiled (remove the rope scaling from config.json to compile without it)"
                )
        model.set_submodule(path, RotaryTables(module, context_length))
