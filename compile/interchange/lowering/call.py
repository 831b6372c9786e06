"""What lowerings know of the model, and the inputs that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix's initializers: values [n, k], and scales [n, blocks] unless the values are float16."""

    values: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True, slots=True)
class Call:
    """`matrices` by the name of the packed initializer; `masks`, of the window, which keys a token attends to.

    A mask is bool[batch, 1, tokens, keys], or bool[batch, 1, 1, tokens, keys] where queries are `grouped`: more heads
    than the `kv_heads` of the cache, whose type is `cache_dtype`.
    """

    matrices: Mapping[str, Matrix]
    masks: Mapping[int, ir.Value]
    kv_heads: int
    head_size: int
    grouped: bool
    cache_dtype: ir.DataType
