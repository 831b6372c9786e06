"""Gated linear units, and norms of residual sums: each as one operator."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import ADD_LAYER_NORM, ADD_RMS_NORM, GEGLU, SWIGLU, Operator
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.nodes import Segment, make_node, put_in_place, segment_of

_FUSED = {"RMSNormalization": ADD_RMS_NORM, "LayerNormalization": ADD_LAYER_NORM}


class FuseGates(GraphPass):
    """Replace activation(gate) * up by SwiGLU or GeGLU if gate and up are the halves of one value.

    Requires fused projections, which produce that value.
    """

    def change(self, model: ir.Model) -> int:
        return sum(_fuse_gate(model, node) for node in list(model.graph) if node.op_type == "Mul")


def _fuse_gate(model: ir.Model, node: ir.Node) -> bool:
    for activated, up in (node.inputs, node.inputs[::-1]):
        if fused := _gated_unit(activated, up):
            operator, source = fused
            put_in_place(model, node, make_node(operator, [source], name=f"{node.name}_gated"), node.outputs)
            return True
    return False


def _gated_unit(activated: ir.Value | None, up: ir.Value | None) -> tuple[Operator, ir.Value] | None:
    """The operator and its input, if these are a gated unit's two factors."""
    activation = _activation(activated)
    segment = segment_of(up)
    if activation is None or segment is None:
        return None
    operator, gate = activation
    size = segment.size
    if gate != Segment(segment.source, 0, size) or segment.start != size or segment.width != 2 * size:
        return None
    return operator, segment.source


def _activation(value: ir.Value | None) -> tuple[Operator, Segment | None] | None:
    """The operator for the activation that produced this value, and the activation's input."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") == "tanh":
        return GEGLU, segment_of(node.inputs[0])
    if node.op_type == "Mul":  # SiLU: x * sigmoid(x)
        for x, factor in (node.inputs, node.inputs[::-1]):
            sigmoid = None if factor is None else factor.producer()
            if sigmoid is not None and sigmoid.op_type == "Sigmoid" and sigmoid.inputs[0] is x:
                return SWIGLU, segment_of(x)
    return None


class FuseResiduals(GraphPass):
    """Replace a norm of a sum of two equal shapes; the sum stays for its other readers, also for a second norm.

    The norm must be along the last axis and have one output, and a LayerNormalization must have a bias. Ensures that
    the graph is sorted.
    """

    def change(self, model: ir.Model) -> int:
        count = sum(_fuse_residual(model, node) for node in list(model.graph) if node.op_type in _FUSED)
        model.graph.sort()  # a sum's other readers may come before the norm
        return count


def _fits(node: ir.Node, addition: ir.Node) -> bool:
    shapes = [None if value is None else value.shape for value in (*addition.inputs, addition.outputs[0])]
    plain = len(node.inputs) == len(_FUSED[node.op_type].inputs) - 1 and len(node.outputs) == 1
    last = node.attributes.get_int("axis", -1) in (-1, len(shapes[-1] or ()) - 1)
    return plain and last and shapes[0] is not None and shapes[0] == shapes[1] == shapes[2]


def _fuse_residual(model: ir.Model, node: ir.Node) -> bool:
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
