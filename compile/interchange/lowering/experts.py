"""The experts of a mixture: all of them compute every row, and each row keeps what its own give."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from mxspec.compile.interchange.lowering.nodes import Call, Nodes
from mxspec.compile.interchange.lowering.rows import clamped_gate, dequantized, gelu_gate, halves, silu_gate


def lower_experts(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """PackedExperts(x [..., K], chosen [..., k], weights [..., k], gate_up, down, biases?) → [..., N].

    Gathering the matrices of each row's experts would need the memory of all of them for every few rows.
    """
    x, chosen, weights, gate_up, down, *biases = node.inputs
    gate_up_bias, down_bias = (*biases, None, None)[:2]
    assert x is not None
    k, n, experts, inner = (node.attributes[name].as_int() for name in ("K", "N", "experts", "inner"))
    rows = nodes.reshape(x, -1, k)
    all_gate_up = nodes.transpose(dequantized(gate_up, call, nodes), 1, 0)
    h = nodes.reshape(nodes.op("MatMul", [rows, all_gate_up]), -1, experts, 2 * inner)
    if gate_up_bias is not None:
        h = nodes.op("Add", [h, gate_up_bias])
    h = nodes.transpose(_gated(node, h, inner, nodes), 1, 0, 2)  # [experts, rows, inner]
    all_down = nodes.transpose(nodes.reshape(dequantized(down, call, nodes), experts, n, inner), 0, 2, 1)
    given = nodes.transpose(nodes.op("MatMul", [h, all_down]), 1, 0, 2)  # [rows, experts, n]
    if down_bias is not None:
        given = nodes.op("Add", [given, down_bias])
    total = _weighted(given, chosen, weights, experts, nodes)
    return (nodes.reshape_behind(nodes.op("Shape", [x], {"end": -1}), total, n),)


def _gated(node: ir.Node, h: ir.Value, inner: int, nodes: Nodes) -> ir.Value:
    """[rows, experts, inner] from the gates and ups [rows, experts, 2 · inner]."""
    if node.attributes.get_int("alternating", 0):
        pairs = nodes.op("Reshape", [h, nodes.ints(0, 0, inner, 2)])
        gate, up = (nodes.op("Gather", [pairs, _scalar(i, nodes)], {"axis": 3}) for i in (0, 1))
    else:
        gate, up = halves(h, nodes)
    activation = node.attributes["activation"].as_string()
    if activation == "silu":
        return silu_gate(gate, up, nodes)
    if activation == "gelu_tanh":
        return gelu_gate(gate, up, nodes)
    assert activation == "clamped_swiglu", activation
    alpha, limit = node.attributes.get_float("alpha", 1.702), node.attributes.get_float("limit", 7.0)
    return clamped_gate(gate, up, alpha, limit, nodes)


def _weighted(
    given: ir.Value, chosen: ir.Value | None, weights: ir.Value | None, experts: int, nodes: Nodes
) -> ir.Value:
    """[rows, n]: the sum of what the chosen of [rows, experts, n] give; whatever the others give does not count."""
    numbers = nodes.op("Constant", [], {"value": ir.tensor(np.arange(experts))})
    ranks = nodes.op("Shape", [chosen], {"start": -1})
    to_rows = nodes.op("Concat", [nodes.ints(-1), ranks], {"axis": 0})
    flat, factors = (nodes.unsqueeze(nodes.op("Reshape", [value, to_rows]), -1) for value in (chosen, weights))
    is_chosen = nodes.cast(nodes.op("Equal", [flat, numbers]), ir.DataType.FLOAT)  # [rows, ranks, experts]
    of_experts, times = (
        nodes.unsqueeze(nodes.op("ReduceSum", [value, nodes.ints(1)], {"keepdims": 0}), -1)
        for value in (nodes.op("Mul", [is_chosen, factors]), is_chosen)
    )
    kept = nodes.op("Where", [nodes.cast(times, ir.DataType.BOOL), given, nodes.number(0)])
    return nodes.op("ReduceSum", [nodes.op("Mul", [kept, of_experts]), nodes.ints(1)], {"keepdims": 0})


def _scalar(value: int, nodes: Nodes) -> ir.Value:
    return nodes.op("Constant", [], {"value": ir.tensor(np.array(value, np.int64))})
