"""Rotary embedding: mxspec::RotaryEmbedding, with cosines and sines from tables computed at compile time.

A model's function is recognised by its results on random numbers, never by its name; other functions are kept. ONNX
Runtime's Cos and Sin give a value other bits in another vector lane, at the end of a row; a table does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mxspec.compile.graph.operators import ROTARY_EMBEDDING
from mxspec.compile.trace.attention import emit
from mxspec.formats.errors import UnsupportedModelError

_APPLY = "apply_rotary_pos_emb"
LENGTH_DEPENDENT = {"dynamic", "longrope"}  # their frequencies change with the length of a sequence
Apply = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a model rotates, and how its tables of `rotary` columns repeat the `rotary` / 2 different ones.

    With `pairs` each even entry of a head rotates with the next, else entry i with entry i + `rotary` / 2. With
    `neighbours` each column of a table is followed by its copy, else the second half of the columns repeats the first;
    without `repeats` tables have the different columns alone.
    """

    pairs: bool
    neighbours: bool
    repeats: bool = True

    def double(self, half: Tensor) -> Tensor:
        """The table in the model's form, from one column a pair."""
        if not self.repeats:
            return half
        return torch.repeat_interleave(half, 2, dim=-1) if self.neighbours else torch.cat((half, half), dim=-1)

    def halve(self, table: Tensor) -> Tensor:
        """One column a pair, from the model's form. Raises UnsupportedModelError if copies of a column differ."""
        if not self.repeats:
            return table.contiguous()
        half = table[..., ::2] if self.neighbours else table[..., : table.shape[-1] // 2]
        if not torch.equal(self.double(half), table):
            raise UnsupportedModelError(
                "rotary embedding that turns the two entries of a pair by different angles is not supported"
            )
        return half.contiguous()


_WAYS = (
    Rotation(pairs=False, neighbours=False),  # most models
    Rotation(pairs=True, neighbours=True),  # Cohere
    Rotation(pairs=True, neighbours=False),  # GLM
    Rotation(pairs=False, neighbours=False, repeats=False),  # gpt-oss
)


@contextmanager
def rotary_as_operator(model: PreTrainedModel) -> Iterator[None]:
    """In this block, the model's apply_rotary_pos_emb emits the operator, if the operator computes the same."""
    replaced: list[tuple[ModuleType, Apply]] = []
    try:
        rotation = rotation_of(model)
        for source, apply in _applies(model):
            if rotation is None and not _equals_one(apply):
                continue
            replaced.append((source, apply))
            setattr(source, _APPLY, _emit_one if rotation is None else _emit_queries_and_keys(rotation.pairs))
        yield
    finally:
        for source, apply in replaced:
            setattr(source, _APPLY, apply)


def rotation_of(model: PreTrainedModel) -> Rotation | None:
    """How the model rotates queries and keys by its tables; None if it does not, or in another way."""
    found = {
        next((rotation for rotation in _WAYS if _equals_queries_and_keys(apply, rotation)), None)
        for _, apply in _applies(model)
    }
    return found.pop() if len(found) == 1 else None


def _applies(model: PreTrainedModel) -> list[tuple[ModuleType, Apply]]:
    """The functions with that name in the model's Python modules."""
    sources = {sys.modules[type(module).__module__] for module in model.modules()}
    return [(source, getattr(source, _APPLY)) for source in sources if hasattr(source, _APPLY)]


def emit_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: bool) -> Tensor:
    """Rotate float32[1, tokens, heads, head_size] by float32[1, tokens, rotary / 2] tables."""
    return emit(ROTARY_EMBEDDING, (x, cos, sin), {"pairs": 1} if pairs else {}, x.shape)


def _emit_queries_and_keys(pairs: bool) -> Apply:
    """Heads second, both at once: most models."""

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim != 1 or cos.ndim != 3:
            raise UnsupportedModelError(
                f"rotary embedding with unsqueeze_dim={unsqueeze_dim} and cosines {list(cos.shape)} is not supported"
            )
        q, k = (emit_rotary(x.transpose(1, 2), cos, sin, pairs=pairs).transpose(1, 2) for x in (q, k))
        return q, k

    return apply


def _emit_one(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Tokens second, one at a time, sines first, a column of each for a pair: GPT-J and CodeGen."""
    return emit_rotary(x, cos, sin, pairs=True)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, pairs: bool) -> Tensor:
    """The operator's result for x [batch, heads, tokens, head_size] with one column of cos and sin a pair."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (turned[..., ::2], turned[..., 1::2]) if pairs else turned.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    both = first * cos - second * sin, second * cos + first * sin
    return torch.cat((torch.stack(both, dim=-1).flatten(-2) if pairs else torch.cat(both, dim=-1), rest), dim=-1)


def _equals_queries_and_keys(apply: Apply, rotation: Rotation) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 3, 16, generator=generator), torch.randn(2, 2, 3, 16, generator=generator)

    def agrees(rotary: int) -> bool:
        cos, sin = torch.randn(2, 2, 3, rotary // 2, generator=generator)
        got = apply(q, k, rotation.double(cos), rotation.double(sin))
        expected = [_rotated(x, cos, sin, rotation.pairs) for x in (q, k)]
        assert isinstance(got, tuple)
        return all(torch.allclose(g, e, atol=1e-6) for g, e in zip(got, expected, strict=True))

    try:
        if not agrees(16):
            return False
    except (RuntimeError, TypeError, AssertionError):
        return False
    try:
        return agrees(8)  # a part of the head: some models slice inside the function, the others never rotate a part
    except RuntimeError:
        return True


def _equals_one(apply: Apply) -> bool:
    generator = torch.Generator().manual_seed(0)
    x, (sin, cos) = torch.randn(1, 3, 4, 16, generator=generator), torch.randn(2, 1, 3, 8, generator=generator)
    expected = _rotated(x.transpose(1, 2), cos, sin, True).transpose(1, 2)
    try:
        got = apply(x, sin, cos)
    except (RuntimeError, TypeError):
        return False
    return isinstance(got, Tensor) and torch.allclose(got, expected, atol=1e-6)


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
