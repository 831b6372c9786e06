"""Rotary embedding: cosines and sines from tables computed at compile time.

ONNX Runtime's Cos and Sin give a value other bits in another vector lane, at the end of a row; a table does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mxspec.compile.trace.rotations import Rotation, rotation_of

LENGTH_DEPENDENT = {"dynamic", "longrope"}  # their frequencies change with the length of a sequence


class RotaryTables(nn.Module):
    """Looks up the cosines and sines of a position: float32[context, rotary / 2] each, for each type of layer.

    This is the operator's form; for a model with its own rotation, the tables are as wide as the model's.
    """

    def __init__(self, rotary: nn.Module, context_length: int, rotation: Rotation | None) -> None:
        super().__init__()
        self.config = rotary.config  # some models read it here
        rope_type = rotary.rope_type
        for kind in [None] if isinstance(rope_type, str) else rope_type:  # type: ignore[union-attr]
            positions = torch.arange(context_length)[None]
            arguments = () if kind is None else (kind,)
            cos, sin = rotary(torch.zeros(1), positions, *arguments)
            if rotation is not None:
                cos, sin = rotation.halve(cos), rotation.halve(sin)
            self.register_buffer(self._name("cos", kind), cos[0].contiguous())
            self.register_buffer(self._name("sin", kind), sin[0].contiguous())

    @staticmethod
    def _name(function: str, kind: str | None) -> str:
        return function if kind is None else f"{kind}_{function}"

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        cos, sin = (getattr(self, self._name(function, layer_type)) for function in ("cos", "sin"))
        return nn.functional.embedding(position_ids, cos), nn.functional.embedding(position_ids, sin)


def replace_rotary_modules(model: PreTrainedModel, context_length: int) -> tuple[str, ...]:
    """Replace the rotary modules by tables; return notes on types whose frequencies depend on the length.

    Such a type gets transformers' frequencies for a sequence of the compiled context, because a token's keys cannot
    change once they are in the cache.
    """
    chosen: dict[str, None] = {}
    rotation = rotation_of(model)
    for path, module in list(model.named_modules()):
        rope_type = getattr(module, "rope_type", None)
        if rope_type is None or not type(module).__name__.endswith("RotaryEmbedding"):
            continue
        for kind in {rope_type} if isinstance(rope_type, str) else set(rope_type.values()):
            if kind in LENGTH_DEPENDENT:
                chosen[f"{kind} rotary embedding: the frequencies are those of {context_length} tokens"] = None
        model.set_submodule(path, RotaryTables(module, context_length, rotation))
    return tuple(chosen)
