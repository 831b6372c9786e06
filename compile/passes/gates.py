"""Gated linear units: the split of gate and up, the activation and the product become one operator."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from mxspec.compile.passes.replace import put_in_place
from mxspec.compile.passes.segments import Segment, segment_of


def fuse_gates(model: ir.Model) -> None:
    """Replace activation(gate) * up by SwiGLU or GeGLU where gate and up are the halves of one value."""
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        for activated, up in (node.inputs, node.inputs[::-1]):
            if fused := _gated_unit(activated, up):
                operator, source = fused
                unit = ir.Node("mxspec", operator, [source], name=f"{node.name}_gated")
                put_in_place(model, node, unit, node.outputs)
                break
    RemoveUnusedNodesPass()(model)


def _gated_unit(activated: ir.Value | None, up: ir.Value | None) -> tuple[str, ir.Value] | None:
    """The operator and its input, if this is a gate and what it lets through."""
    activation = _activation(activated)
    behind = segment_of(up)
    if activation is None or behind is None:
        return None
    operator, gate = activation
    size = behind.size
    if gate != Segment(behind.source, 0, size) or behind.start != size or behind.width != 2 * size:
        return None
    return operator, behind.source


def _activation(value: ir.Value | None) -> tuple[str, Segment | None] | None:
    """Which unit the activation that gave this value makes, and what it was applied to."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") == "tanh":
        return "GeGLU", segment_of(node.inputs[0])
    if node.op_type == "Mul":  # SiLU: x * sigmoid(x)
        for x, factor in (node.inputs, node.inputs[::-1]):
            sigmoid = None if factor is None else factor.producer()
            if sigmoid is not None and sigmoid.op_type == "Sigmoid" and sigmoid.inputs[0] is x:
                return "SwiGLU", segment_of(x)
    return None
