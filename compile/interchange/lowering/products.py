"""The product with a packed matrix, and its rows: both use DequantizeLinear of codes and scales."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call, WeightMatrix
from mxspec.compile.interchange.lowering.nodes import Nodes
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
