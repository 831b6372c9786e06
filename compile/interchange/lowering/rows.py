"""What treats each row alone: products with packed matrices, lookups, norms, gates; and views of rows."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.nodes import Call, Nodes, WeightMatrix
from mxspec.formats.errors import MxspecError
from mxspec.formats.weight_format import BLOCK


def lower_matmul(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """PackedMatMul(A [..., k], B, bias [n]?) → A · Bᵀ + bias."""
    x, packed, *bias = node.inputs
    assert x is not None
    weight = nodes.transpose(dequantized(packed, call, nodes), 1, 0)
    product = nodes.op("MatMul", [x, weight])
    return (nodes.op("Add", [product, bias[0]]) if bias else product,)


def lower_gather(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """PackedGather(ids [...], B) → rows [..., k] of B.

    Gather supports no types of less than a byte, so it reads rows of the float32 matrix, which the head also needs.
    """
    ids, packed = node.inputs
    assert ids is not None
    matrix = _matrix(packed, call)
    if matrix.scales is None:
        return (nodes.cast(nodes.op("Gather", [matrix.values, ids]), ir.DataType.FLOAT),)
    return (nodes.op("Gather", [dequantized(packed, call, nodes), ids]),)


def dequantized(packed: ir.Value | None, call: Call, nodes: Nodes) -> ir.Value:
    """The packed matrix as float32[n, k]."""
    matrix = _matrix(packed, call)
    if matrix.scales is None:
        return nodes.cast(matrix.values, ir.DataType.FLOAT)
    attributes = {"axis": 1, "block_size": BLOCK}
    if matrix.scales.dtype != ir.DataType.FLOAT:  # otherwise the result has the scales' type
        attributes["output_dtype"] = int(ir.DataType.FLOAT)
    return nodes.op("DequantizeLinear", [matrix.values, matrix.scales], attributes)


def _matrix(packed: ir.Value | None, call: Call) -> WeightMatrix:
    assert packed is not None
    assert packed.name is not None
    return call.matrices[packed.name]


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


def lower_reshape(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """Reshape of [1, tokens, ...] to [1, tokens, ...] copies both dimensions, of any size.

    Rows [tokens, n] of all texts of a batch follow one another: a view of [1, tokens, n] as that stays, and the view
    back takes both dimensions from the token ids.
    """
    x, target = node.inputs
    constant = None if target is None else ir.convenience.get_const_tensor(target)
    shape = [] if constant is None else constant.numpy().tolist()
    result = node.outputs[0].shape
    if x is None or x.shape is None or result is None:
        raise MxspecError(f"node {node.name}: a Reshape of an unknown shape has no standard form")
    if shape[:2] == [1, 0] and len(shape) > 2:
        return (nodes.reshape(x, 0, 0, *shape[2:]),)
    if (len(x.shape), len(shape)) == (3, 2) and shape[0] == -1 and list(x.shape[1:]) == list(result):
        return (nodes.reshape(x, *shape),)
    if x.shape[0] == result[0] != 1 and shape[0] in (0, -1):  # each row for itself, such as scores in groups
        return (nodes.reshape(x, 0, *shape[1:]),)
    if (len(x.shape), len(shape)) == (2, 3) and list(x.shape) == list(result[1:]):
        return (nodes.reshape_behind(nodes.op("Shape", [call.tokens]), x, shape[2]),)
    raise MxspecError(f"node {node.name}: a Reshape that needs a batch of one has no standard form")
