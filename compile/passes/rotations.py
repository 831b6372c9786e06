"""A rotation of the first part of each head becomes one operator, where a model cuts heads up and joins them again."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from mxspec.compile.passes.replace import put_in_place
from mxspec.compile.passes.segments import last_dimension, segment_of


def join_partial_rotations(model: ir.Model) -> None:
    """Replace the Concat of a rotated first part and the untouched rest of a value by the rotation of the whole value.

    RotaryEmbedding copies what its tables do not reach. The two parts must be all of the value's last axis.
    """
    for node in [node for node in model.graph if node.op_type == "Concat" and len(node.inputs) == 2]:
        rotation = None if node.inputs[0] is None else node.inputs[0].producer()
        if rotation is None or rotation.op_type != "RotaryEmbedding":
            continue
        first, rest = segment_of(rotation.inputs[0]), segment_of(node.inputs[1])
        if first is None or rest is None or first.source is not rest.source:
            continue
        if last_dimension(node.outputs[0]) != first.width:
            continue
        if (first.start, rest.start, rest.size) != (0, first.size, first.width - first.size):
            continue
        whole = ir.Node("mxspec", "RotaryEmbedding", [first.source, *rotation.inputs[1:]], name=f"{node.name}_rotated")
        put_in_place(model, node, whole, node.outputs)
    RemoveUnusedNodesPass()(model)
