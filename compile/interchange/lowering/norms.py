"""Norms: RMS norms in single operators, LayerNormalization unchanged, sums with a residual separately."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes


def lower_rms_norm(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """RMSNormalization(x, weight), along the last axis, as the compiler always writes it."""
    x, weight = _given(node)
    return (rms_norm(nodes, x, weight, node.attributes.get_float("epsilon", 1e-5)),)


def lower_add_rms_norm(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """AddRMSNorm(x, residual, weight) → norm, sum."""
    x, residual, weight = _given(node)
    total = nodes.op("Add", [x, residual])
    return rms_norm(nodes, total, weight, node.attributes["epsilon"].as_float()), total


def lower_add_layer_norm(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """AddLayerNorm(x, residual, weight, bias) → norm, sum."""
    x, residual, weight, bias = _given(node)
    total = nodes.op("Add", [x, residual])
    attributes = {"axis": -1, "epsilon": node.attributes["epsilon"].as_float()}
    return nodes.op("LayerNormalization", [total, weight, bias], attributes), total


def rms_norm(nodes: Nodes, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
    """x / sqrt(mean(x²) + epsilon) · weight, along the last axis (Zhang and Sennrich 2019)."""
    squares = nodes.op("ReduceMean", [nodes.op("Mul", [x, x]), nodes.ints(-1)], {"keepdims": 1})
    root = nodes.op("Sqrt", [nodes.op("Add", [squares, nodes.number(epsilon)])])
    return nodes.op("Mul", [nodes.op("Div", [x, root]), weight])


def _given(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]
