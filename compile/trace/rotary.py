"""Rotary embedding: cosines and sines from tables computed at compile time, the rotation as one operator.

ONNX Runtime's Cos and Sin give a value other bits where a row's end falls on another vector lane; a table does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mxspec.formats.errors import UnsupportedModelError

LENGTH_DEPENDENT = {"dynamic", "longrope"}  # their frequencies change with the sequence: no table can hold that
_APPLY = "apply_rotary_pos_emb"


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
                    "length: it cannot be compiled"
                )
        model.set_submodule(path, RotaryTables(module, context_length))


def emit_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate float32[1, heads, tokens, head_size] by mxspec::RotaryEmbedding, which wants the heads third."""
    rotated = torch.onnx.ops.symbolic(
        "mxspec::RotaryEmbedding",
        (x.transpose(1, 2), cos, sin),
        dtype=torch.float32,
        shape=x.transpose(1, 2).shape,
        version=1,
    )
    return rotated.transpose(1, 2)


def _apply_by_operator(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    if unsqueeze_dim != 1 or cos.ndim != 3:
        raise UnsupportedModelError(
            f"rotary embedding with unsqueeze_dim={unsqueeze_dim} on {tuple(cos.shape)} cosines"
        )
    return emit_rotary(q, cos, sin), emit_rotary(k, cos, sin)


def rotates_halves(apply: Callable[..., tuple[Tensor, Tensor]]) -> bool:
    """Whether `apply(q, k, cos, sin)` does what the operator does, judged on random numbers."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 3, 16, generator=generator), torch.randn(2, 2, 3, 16, generator=generator)

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]
        return torch.cat((turned, rest), dim=-1)

    def agrees(rotary: int) -> bool:
        cos, sin = torch.randn(2, 2, 3, rotary, generator=generator)
        got = apply(q, k, cos, sin)
        return all(torch.allclose(g, rotate(x, cos, sin), atol=1e-6) for g, x in zip(got, (q, k), strict=True))

    try:
        if not agrees(16):
            return False
    except (RuntimeError, TypeError):
        return False
    try:
        return agrees(8)  # a part of the head: some models slice inside the function, the others never ask for it
    except RuntimeError:
        return True


@contextmanager
def rotary_as_operator(model: PreTrainedModel) -> Iterator[None]:
    """While the model is traced its apply_rotary_pos_emb emits the operator, where that means the same."""
    replaced: list[tuple[ModuleType, object]] = []
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    try:
        for source in modules:
            apply = getattr(source, _APPLY, None)
            if apply is not None and rotates_halves(apply):
                replaced.append((source, apply))
                setattr(source, _APPLY, _apply_by_operator)
        yield
    finally:
        for source, apply in replaced:
            setattr(source, _APPLY, apply)
