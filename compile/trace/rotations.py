"""The ways in which transformers' models write a rotation, and mxspec::RotaryEmbedding in their place.

A model's function is known by what it does to random numbers, never by its name: one that does something else stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mxspec.compile.operators import ROTARY_EMBEDDING
from mxspec.formats.errors import UnsupportedModelError

_APPLY = "apply_rotary_pos_emb"
Apply = Callable[..., object]


@contextmanager
def rotary_as_operator(model: PreTrainedModel) -> Iterator[None]:
    """While the model is traced its apply_rotary_pos_emb emits the operator, where that means the same."""
    replaced: list[tuple[ModuleType, object]] = []
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    try:
        for source in modules:
            apply = getattr(source, _APPLY, None)
            operator = None if apply is None else operator_for(apply)
            if operator is not None:
                replaced.append((source, apply))
                setattr(source, _APPLY, operator)
        yield
    finally:
        for source, apply in replaced:
            setattr(source, _APPLY, apply)


def reads_half_tables(model: PreTrainedModel) -> bool:
    """Whether the model rotates pairs by tables of which it takes the first half, each entry twice (GLM)."""
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    applies = (getattr(source, _APPLY, None) for source in modules)
    return any(_equals_queries_and_keys(apply, pairs=True, halved=True) for apply in applies if apply is not None)


def operator_for(apply: Apply) -> Apply | None:
    """The function that emits the operator and means the same as this one; None where there is none."""
    for pairs, halved in ((False, False), (True, False), (True, True)):  # of the last, rotary.py doubles the tables
        if _equals_queries_and_keys(apply, pairs, halved):
            return _emit_queries_and_keys(pairs)
    return _emit_one if _equals_one(apply) else None


def emit_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: bool) -> Tensor:
    """Rotate float32[1, tokens, heads, head_size] by float32[1, tokens, rotary] tables."""
    return torch.onnx.ops.symbolic(
        ROTARY_EMBEDDING.qualified,
        (x, cos, sin),
        {"pairs": 1} if pairs else {},
        dtype=torch.float32,
        shape=x.shape,
        version=1,
    )


def _emit_queries_and_keys(pairs: bool) -> Apply:
    """Heads second, both at once: most models."""

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim != 1 or cos.ndim != 3:
            raise UnsupportedModelError(
                f"rotary embedding with unsqueeze_dim={unsqueeze_dim} on {tuple(cos.shape)} cosines"
            )
        q, k = (emit_rotary(x.transpose(1, 2), cos, sin, pairs=pairs).transpose(1, 2) for x in (q, k))
        return q, k

    return apply


def _emit_one(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Tokens second, one at a time, sines first: GPT-J and CodeGen, whose patches double the tables."""
    return emit_rotary(x, cos, sin, pairs=True)


def doubled(table: Tensor) -> Tensor:
    """Each entry of the last axis twice."""
    return torch.repeat_interleave(table, 2, dim=-1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, pairs: bool) -> Tensor:
    """What the operator computes, of x [batch, heads, tokens, head_size]."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    if pairs:
        crossed = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = turned.chunk(2, dim=-1)
        crossed = torch.cat((-second, first), dim=-1)
    return torch.cat((turned * cos[:, None] + crossed * sin[:, None], rest), dim=-1)


def _equals_queries_and_keys(apply: Apply, pairs: bool, halved: bool) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 3, 16, generator=generator), torch.randn(2, 2, 3, 16, generator=generator)

    def agrees(rotary: int) -> bool:
        cos, sin = torch.randn(2, 2, 3, rotary, generator=generator)
        got = apply(q, k, cos, sin)
        if halved:
            cos, sin = (doubled(table[..., : rotary // 2]) for table in (cos, sin))
        expected = [_rotated(x, cos, sin, pairs) for x in (q, k)]
        assert isinstance(got, tuple)
        return all(torch.allclose(g, e, atol=1e-6) for g, e in zip(got, expected, strict=True))

    try:
        if not agrees(16):
            return False
    except (RuntimeError, TypeError, AssertionError):
        return False
    try:
        return agrees(8)  # a part of the head: some models slice inside the function, the others never ask for it
    except RuntimeError:
        return True


def _equals_one(apply: Apply) -> bool:
    generator = torch.Generator().manual_seed(0)
    x, (sin, cos) = torch.randn(1, 3, 4, 16, generator=generator), torch.randn(2, 1, 3, 8, generator=generator)
    expected = _rotated(x.transpose(1, 2), doubled(cos), doubled(sin), True).transpose(1, 2)
    try:
        got = apply(x, sin, cos)
    except (RuntimeError, TypeError):
        return False
    return isinstance(got, Tensor) and torch.allclose(got, expected, atol=1e-6)
