"""Gated units: a gate, activated, times what it lets through."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes


def lower_swiglu(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """silu(gate) · up of a row's first half and its second."""
    return (silu_gate(*halves(node.inputs[0], nodes), nodes),)


def lower_geglu(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """gelu(gate) · up of a row's first half and its second, by the tanh form."""
    return (gelu_gate(*halves(node.inputs[0], nodes), nodes),)


def halves(x: ir.Value | None, nodes: Nodes) -> tuple[ir.Value, ir.Value]:
    """The halves of the last axis."""
    first, second = nodes.op_multi_out("Split", [x], {"axis": -1, "num_outputs": 2}, num_outputs=2)
    return first, second


def silu_gate(gate: ir.Value, up: ir.Value, nodes: Nodes) -> ir.Value:
    """silu(gate) · up."""
    return nodes.op("Mul", [nodes.op("Mul", [gate, nodes.op("Sigmoid", [gate])]), up])


def gelu_gate(gate: ir.Value, up: ir.Value, nodes: Nodes) -> ir.Value:
    """gelu(gate) · up, by the tanh form."""
    return nodes.op("Mul", [nodes.op("Gelu", [gate], {"approximate": "tanh"}), up])


def clamped_gate(gate: ir.Value, up: ir.Value, alpha: float, limit: float, nodes: Nodes) -> ir.Value:
    """gpt-oss's: x · sigmoid(alpha · x) · (clip(up, ±limit) + 1) with x = min(gate, limit)."""
    most = nodes.number(limit)
    x = nodes.op("Min", [gate, most])
    glu = nodes.op("Mul", [x, nodes.op("Sigmoid", [nodes.op("Mul", [nodes.number(alpha), x])])])
    return nodes.op(
        "Mul", [nodes.op("Add", [nodes.op("Clip", [up, nodes.number(-limit), most]), nodes.number(1)]), glu]
    )
