"""Attention that reads the fused product of the projections: split, head views and rotation go into the operator."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from mxspec.compile.segments import Segment, last_dimension, segment_of


def fuse_qkv(model: ir.Model) -> None:
    """Replace Attention by QkvAttention where its queries, keys and values are, in this order, all of one value.

    Queries and keys may be rotated, by the same tables. Whatever else happens to them on the way (norms, a rotation of
    slices) or with the slopes of ALiBi leaves the attention as it is.
    """
    for node in [node for node in model.graph if (node.domain, node.op_type) == ("mxspec", "Attention")]:
        flat = _flat_output(node)
        operands = _operands(node)
        if flat is None or operands is None:
            continue
        source, tables = operands
        fused = ir.Node(
            "mxspec",
            "QkvAttention",
            [source, *node.inputs[3:7], *tables],
            list(node.attributes.values()),
            num_outputs=3,
            name=f"{node.name}_qkv",
        )
        for new, old in zip(fused.outputs, (flat, *node.outputs[1:]), strict=True):
            new.name, new.shape, new.type = old.name, old.shape, old.type
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        model.graph.insert_before(node, fused)
    RemoveUnusedNodesPass()(model)


def _flat_output(node: ir.Node) -> ir.Value | None:
    """The output as [batch, sequence, heads * head_size], if nobody reads it in another shape."""
    output = node.outputs[0]
    uses = list(output.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Reshape" or output.shape is None:
        return None
    flat = uses[0].node.outputs[0]
    heads, head_size = output.shape[2:]
    same_rows = flat.shape is not None and list(flat.shape[:-1]) == list(output.shape[:2])
    if not same_rows or not isinstance(heads, int) or not isinstance(head_size, int):
        return None
    return flat if last_dimension(flat) == heads * head_size else None


def _operands(node: ir.Node) -> tuple[ir.Value, list[ir.Value]] | None:
    """The value that queries, keys and values are cut out of, and the tables that rotate the first two."""
    if len(node.inputs) != 7:  # the eighth are ALiBi's slopes
        return None
    (query, query_tables), (key, key_tables), (value, value_tables) = (_unrotated(v) for v in node.inputs[:3])
    parts = [_heads_of(head) for head in (query, key, value)]
    if query_tables != key_tables or value_tables or None in parts:
        return None
    found = [part for part in parts if part is not None]
    source, start = found[0].source, 0
    for part in found:
        if part.source is not source or part.start != start:
            return None
        start += part.size
    return (source, query_tables) if start == found[0].width else None


def _unrotated(value: ir.Value | None) -> tuple[ir.Value | None, list[ir.Value]]:
    node = None if value is None else value.producer()
    if node is None or node.op_type != "RotaryEmbedding":
        return value, []
    return node.inputs[0], [table for table in node.inputs[1:] if table is not None]


def _heads_of(value: ir.Value | None) -> Segment | None:
    """The part that a head view [batch, sequence, heads, head_size] shows."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Reshape" or value is None or value.shape is None or len(value.shape) != 4:
        return None
    part, (heads, head_size) = segment_of(node.inputs[0]), value.shape[2:]
    if part is None or not isinstance(heads, int) or not isinstance(head_size, int):
        return None
    return part if part.size == heads * head_size else None
