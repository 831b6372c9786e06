"""Rotary embedding in standard operators."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes
from mxspec.compile.passes.nodes import last_dimension


def lower_rotary_embedding(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """RotaryEmbedding(x [batch, tokens, heads, head_size], cos, sin [batch, tokens, rotary / 2])."""
    x, cos, sin = node.inputs
    assert x is not None
    assert cos is not None
    assert sin is not None
    return (rotate(nodes, x, cos, sin, call.head_size, pairs=bool(node.attributes.get_int("pairs", 0))),)


def rotate(nodes: Nodes, x: ir.Value, cos: ir.Value, sin: ir.Value, head_size: int, *, pairs: bool = False) -> ir.Value:
    """(first · cos − second · sin, second · cos + first · sin) of the halves of the first entries of each head.

    These entries are twice the number of the tables' columns. With pairs, the halves are the even and the odd entries.
    """
    half = last_dimension(cos)
    assert half is not None
    rotary, rest = 2 * half, list[ir.Value]()
    if rotary < head_size:
        x, *rest = nodes.split(x, -1, (rotary, head_size - rotary))
    x = nodes.reshape(x, 0, 0, 0, half, 2) if pairs else x
    first, second = nodes.split(x, -1, (1, 1) if pairs else (half, half))
    cos, sin = (nodes.unsqueeze(table, 2, *([4] if pairs else [])) for table in (cos, sin))
    turned = [
        nodes.op("Sub", [nodes.op("Mul", [first, cos]), nodes.op("Mul", [second, sin])]),
        nodes.op("Add", [nodes.op("Mul", [second, cos]), nodes.op("Mul", [first, sin])]),
    ]
    if pairs:
        joined = nodes.reshape(nodes.op("Concat", turned, {"axis": -1}), 0, 0, 0, rotary)
        return nodes.op("Concat", [joined, *rest], {"axis": -1}) if rest else joined
    return nodes.op("Concat", [*turned, *rest], {"axis": -1})
