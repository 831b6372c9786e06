"""Make one operator of a rotation of the first part of each head, if a model splits heads and joins them again."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import ROTARY_EMBEDDING
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.nodes import is_node_of, make_node, put_in_place
from mxspec.compile.passes.segments import last_dimension, segment_of


class JoinPartialRotations(GraphPass):
    """Replace the Concat of a rotated first part and the untouched rest of a value by the rotation of the whole value.

    RotaryEmbedding copies the entries beyond its tables. The two parts must cover the value's last axis.
    """

    def change(self, model: ir.Model) -> int:
        return sum(_join(model, node) for node in list(model.graph) if node.op_type == "Concat")


def _join(model: ir.Model, node: ir.Node) -> bool:
    rotation = None if node.inputs[0] is None else node.inputs[0].producer()
    if rotation is None or not is_node_of(ROTARY_EMBEDDING, rotation) or len(node.inputs) != 2:
        return False
    first, rest = segment_of(rotation.inputs[0]), segment_of(node.inputs[1])
    if first is None or rest is None or first.source is not rest.source:
        return False
    if last_dimension(node.outputs[0]) != first.width:
        return False
    if (first.start, rest.start, rest.size) != (0, first.size, first.width - first.size):
        return False
    name = f"{node.name}_rotated"
    whole = make_node(ROTARY_EMBEDDING, [first.source, *rotation.inputs[1:]], rotation.attributes.values(), name=name)
    put_in_place(model, node, whole, node.outputs)
    return True
