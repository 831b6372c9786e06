"""The types and dimensions of a graph's key-value caches, which nothing else in the graph depends on."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import ATTENTION
from mxspec.formats.caches import CacheKind, cache_dtype, capacity_name, entry_size

_PREFIXES = ("past_key.", "past_value.", "present_", "cross_")


def set_caches(model: ir.Model, kind: CacheKind, head_size: int) -> None:
    """Make the caches that a graph reads and writes those of a kind, [slots, kv_heads, capacity, entry] each.

    The capacity of layers with a window has a name of its own.
    """
    for value in (*model.graph.inputs, *model.graph.outputs):
        if str(value.name).startswith(_PREFIXES):
            assert value.shape is not None
            # A type of its own: clones of a graph share theirs.
            value.type = ir.TensorType(ir.DataType.from_numpy(cache_dtype(kind)))
            value.shape = ir.Shape([*value.shape[:3], entry_size(kind, head_size)])
    for node in model.graph:
        window = node.attributes.get_int("window", 0) if node.op_type == ATTENTION.name else 0
        for cache in (*node.inputs[3:5], *node.outputs[1:3]) if window else ():
            assert cache is not None
            assert cache.shape is not None
            cache.shape = ir.Shape([*cache.shape[:2], capacity_name(window), cache.shape[3]])
