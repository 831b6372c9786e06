"""Fuse residual additions and the norms after them into one operator."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import ADD_LAYER_NORM, ADD_RMS_NORM
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.nodes import make_node, put_in_place

_FUSED = {"RMSNormalization": ADD_RMS_NORM, "LayerNormalization": ADD_LAYER_NORM}


class FuseResiduals(GraphPass):
    """Replace a norm of a sum of two equal shapes; the sum stays for its other readers, also for a second norm.

    The norm must be along the last axis and have one output, and a LayerNormalization must have a bias. Ensures that
    the graph is sorted.
    """

    def change(self, model: ir.Model) -> int:
        count = sum(_fuse(model, node) for node in list(model.graph) if node.op_type in _FUSED)
        model.graph.sort()  # a sum's other readers may come before the norm
        return count


def _fits(node: ir.Node, addition: ir.Node) -> bool:
    shapes = [None if value is None else value.shape for value in (*addition.inputs, addition.outputs[0])]
    plain = len(node.inputs) == len(_FUSED[node.op_type].inputs) - 1 and len(node.outputs) == 1
    last = node.attributes.get_int("axis", -1) in (-1, len(shapes[-1] or ()) - 1)
    return plain and last and shapes[0] is not None and shapes[0] == shapes[1] == shapes[2]


def _fuse(model: ir.Model, node: ir.Node) -> bool:
    addition = node.inputs[0].producer() if node.inputs[0] is not None else None
    if addition is None or addition.op_type != "Add" or not _fits(node, addition):
        return False
    fused = make_node(
        _FUSED[node.op_type],
        [*addition.inputs, *node.inputs[1:]],
        [ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))],
        name=f"{node.name}_residual",
    )
    put_in_place(model, node, fused, (node.outputs[0], addition.outputs[0]))
    model.graph.remove(node, safe=True)
    model.graph.remove(addition, safe=True)
    return True
