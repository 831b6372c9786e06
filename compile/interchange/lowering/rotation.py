"""Rotary embedding, spelled out."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes
from mxspec.compile.passes.segments import last_dimension


def lower_rotary_embedding(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """RotaryEmbedding(x [batch, tokens, heads, head_size], cos, sin [batch, tokens, rotary])."""
    x, cos, sin = node.inputs
    assert x is not None
    assert cos is not None
    assert sin is not None
    return (rotate(nodes, x, cos, sin, call.head_size, pairs=bool(node.attributes.get_int("pairs", 0))),)


def rotate(nodes: Nodes, x: ir.Value, cos: ir.Value, sin: ir.Value, head_size: int, *, pairs: bool = False) -> ir.Value:
    """x · cos + (−second half, first half) · sin of the first entries of each head, as many as the tables have.

    Of pairs, the second of each takes the place of the second half.
    """
    rotary = last_dimension(cos)
    assert rotary is not None
    rest: list[ir.Value] = []
    if rotary < head_size:
        x, *rest = nodes.split(x, -1, (rotary, head_size - rotary))
    if pairs:
        first, second = nodes.split(nodes.reshape(x, 0, 0, 0, rotary // 2, 2), -1, (1, 1))
    else:
        first, second = nodes.split(x, -1, (rotary // 2, rotary // 2))
    turned = nodes.op("Concat", [nodes.op("Neg", [second]), first], {"axis": -1})
    turned = nodes.reshape(turned, 0, 0, 0, rotary) if pairs else turned
    straight = nodes.op("Mul", [x, nodes.unsqueeze(cos, 2)])
    rotated = nodes.op("Add", [straight, nodes.op("Mul", [turned, nodes.unsqueeze(sin, 2)])])
    return nodes.op("Concat", [rotated, *rest], {"axis": -1}) if rest else rotated
