"""The facts about a model, and the inputs, that all lowerings share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A matrix's initializers: values [n, k], and scales [n, blocks] unless the values are float16."""

    values: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True, slots=True)
class Call:
    """`matrices` by the packed initializer's name; `masks` by window: the keys that a token attends to.

    `tokens` are the token ids int64[batch, tokens]. A mask is bool[batch, 1, tokens, keys], or bool[batch, 1, 1,
    tokens, keys] if queries are `grouped`: there are more heads than the `kv_heads` of the cache, whose type is
    `cache_dtype`.
    """

    matrices: Mapping[str, WeightMatrix]
    tokens: ir.Value
    masks: Mapping[int, ir.Value]
    kv_heads: int
    head_size: int
    grouped: bool
    cache_dtype: ir.DataType
