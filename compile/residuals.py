"""Residual additions and the RMS norms behind them become one operator."""

from __future__ import annotations

import onnx_ir as ir


def fuse_residuals(model: ir.Model) -> None:
    """Replace an RMSNormalization of a sum of two equal shapes; the sum stays there for its other readers.

    The sums under a LayerNormalization are left to ONNX Runtime, which fuses those itself when it loads a graph.
    """
    for node in [node for node in model.graph if node.op_type == "RMSNormalization"]:
        addition = node.inputs[0].producer() if node.inputs[0] is not None else None
        if addition is not None and addition.op_type == "Add" and _fits(node, addition):
            _fuse(model, node, addition)
    model.graph.sort()  # a sum's other readers may have stood before the norm


def _fits(node: ir.Node, addition: ir.Node) -> bool:
    shapes = [None if value is None else value.shape for value in (*addition.inputs, addition.outputs[0])]
    return node.attributes.get_int("axis", -1) == -1 and shapes[0] is not None and shapes[0] == shapes[1] == shapes[2]


def _fuse(model: ir.Model, node: ir.Node, addition: ir.Node) -> None:
    fused = ir.Node(
        "mxspec",
        "AddRMSNorm",
        [*addition.inputs, node.inputs[1]],
        [ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))],
        num_outputs=2,
        name=f"{node.name}_residual",
    )
    model.graph.insert_before(node, fused)
    for new, old in zip(fused.outputs, (node.outputs[0], addition.outputs[0]), strict=True):
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.replace_all_uses_with(new)
    model.graph.remove(node, safe=True)
    model.graph.remove(addition, safe=True)
