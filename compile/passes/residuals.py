"""Residual additions and the norms behind them become one operator."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.passes.replace import put_in_place

_FUSED = {"RMSNormalization": "AddRMSNorm", "LayerNormalization": "AddLayerNorm"}
_VECTORS = {"RMSNormalization": 1, "LayerNormalization": 2}  # weight, and bias


def fuse_residuals(model: ir.Model) -> None:
    """Replace a norm of a sum of two equal shapes; the sum stays there for its other readers, a second norm included.

    The norm must be along the last axis, its result its only output, and a LayerNormalization must have a bias.
    """
    for node in [node for node in model.graph if node.op_type in _FUSED]:
        addition = node.inputs[0].producer() if node.inputs[0] is not None else None
        if addition is not None and addition.op_type == "Add" and _fits(node, addition):
            _fuse(model, node, addition)
    model.graph.sort()  # a sum's other readers may have stood before the norm


def _fits(node: ir.Node, addition: ir.Node) -> bool:
    shapes = [None if value is None else value.shape for value in (*addition.inputs, addition.outputs[0])]
    plain = len(node.inputs) == 1 + _VECTORS[node.op_type] and len(node.outputs) == 1
    last = node.attributes.get_int("axis", -1) in (-1, len(shapes[-1] or ()) - 1)
    return plain and last and shapes[0] is not None and shapes[0] == shapes[1] == shapes[2]


def _fuse(model: ir.Model, node: ir.Node, addition: ir.Node) -> None:
    fused = ir.Node(
        "mxspec",
        _FUSED[node.op_type],
        [*addition.inputs, *node.inputs[1:]],
        [ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))],
        num_outputs=2,
        name=f"{node.name}_residual",
    )
    put_in_place(model, node, fused, (node.outputs[0], addition.outputs[0]))
    model.graph.remove(node, safe=True)
    model.graph.remove(addition, safe=True)
