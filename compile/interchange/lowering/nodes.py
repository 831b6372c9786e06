"""A tape on which lowerings write nodes, and what all lowerings know of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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


class Nodes(ir.tape.Tape):
    """A tape of standard nodes, with the few that need a constant."""

    def ints(self, *values: int) -> ir.Value:
        """A constant int64[...]."""
        return self.op("Constant", [], {"value": ir.tensor(np.array(values, np.int64))})

    def number(self, value: float) -> ir.Value:
        """A constant float32[]."""
        return self.op("Constant", [], {"value": ir.tensor(np.array(value, np.float32))})

    def reshape(self, x: ir.Value, *shape: int) -> ir.Value:
        """`x` in another shape: 0 copies a dimension, -1 is computed."""
        return self.op("Reshape", [x, self.ints(*shape)])

    def reshape_behind(self, leading: ir.Value, x: ir.Value, *shape: int) -> ir.Value:
        """`x` in the shape of the dimensions `leading` int64[...], then these."""
        return self.op("Reshape", [x, self.op("Concat", [leading, self.ints(*shape)], {"axis": 0})])

    def transpose(self, x: ir.Value, *order: int) -> ir.Value:
        """`x` with its axes in another order."""
        return self.op("Transpose", [x], {"perm": order})

    def unsqueeze(self, x: ir.Value, *axes: int) -> ir.Value:
        """`x` with more axes, each of one entry."""
        return self.op("Unsqueeze", [x, self.ints(*axes)])

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`x` in another type."""
        return self.op("Cast", [x], {"to": int(dtype)})

    def split(self, x: ir.Value, axis: int, sizes: Sequence[int]) -> Sequence[ir.Value]:
        """Parts of `x` along an axis."""
        return self.op_multi_out("Split", [x, self.ints(*sizes)], {"axis": axis}, num_outputs=len(sizes))
