"""The product with a packed matrix: MatMul with what DequantizeLinear makes of codes and scales."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call, Matrix
from mxspec.compile.interchange.lowering.nodes import Nodes
from mxspec.formats.weight_format import BLOCK


def lower_matmul(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """PackedMatMul(A [..., k], B, bias [n]?) → A · Bᵀ + bias."""
    x, packed, *bias = node.inputs
    assert x is not None
    assert packed is not None
    assert packed.name is not None
    weight = nodes.transpose(_dequantized(call.matrices[packed.name], nodes), 1, 0)
    product = nodes.op("MatMul", [x, weight])
    return (nodes.op("Add", [product, bias[0]]) if bias else product,)


def _dequantized(matrix: Matrix, nodes: Nodes) -> ir.Value:
    """float32[n, k]."""
    if matrix.scales is None:
        return nodes.cast(matrix.values, ir.DataType.FLOAT)
    attributes = {"axis": 1, "block_size": BLOCK}
    if matrix.scales.dtype != ir.DataType.FLOAT:  # otherwise the result has the scales' type
        attributes["output_dtype"] = int(ir.DataType.FLOAT)
    return nodes.op("DequantizeLinear", [matrix.values, matrix.scales], attributes)
