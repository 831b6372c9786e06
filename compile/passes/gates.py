"""Gated linear units: fuse the split of gate and up, the activation and the product into one operator."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import GEGLU, SWIGLU, Operator
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.nodes import make_node, put_in_place
from mxspec.compile.passes.segments import Segment, segment_of


class FuseGates(GraphPass):
    """Replace activation(gate) * up by SwiGLU or GeGLU if gate and up are the halves of one value.

    Requires fused projections, which produce that value.
    """

    def change(self, model: ir.Model) -> int:
        return sum(_fuse(model, node) for node in list(model.graph) if node.op_type == "Mul")


def _fuse(model: ir.Model, node: ir.Node) -> bool:
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
