"""Gated units: a row's first half, activated, times its second."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes


def lower_swiglu(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """silu(gate) · up."""
    gate, up = _halves(node, nodes)
    silu = nodes.op("Mul", [gate, nodes.op("Sigmoid", [gate])])
    return (nodes.op("Mul", [silu, up]),)


def lower_geglu(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """gelu(gate) · up, by the tanh form."""
    gate, up = _halves(node, nodes)
    return (nodes.op("Mul", [nodes.op("Gelu", [gate], {"approximate": "tanh"}), up]),)


def _halves(node: ir.Node, nodes: Nodes) -> tuple[ir.Value, ir.Value]:
    gate, up = nodes.op_multi_out("Split", node.inputs, {"axis": -1, "num_outputs": 2}, num_outputs=2)
    return gate, up
