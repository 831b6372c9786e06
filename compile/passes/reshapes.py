"""Remove nodes that compute shapes that only copy or split dimensions of the input."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.passes.graph_pass import GraphPass


class MakeReshapesConstant(GraphPass):
    """Give a Reshape an equivalent constant shape if there is one; remove a Reshape without effect."""

    def change(self, model: ir.Model) -> int:
        return sum(_make_constant(model, node) for node in list(model.graph) if node.op_type == "Reshape")

    def ensures(self, model: ir.Model) -> None:
        assert all(
            node.inputs[1].producer().op_type == "Constant"  # type: ignore[union-attr]
            for node in model.graph
            if node.op_type == "Reshape" and node.outputs[0].uses() and _target(node) is not None
        )


def _make_constant(model: ir.Model, node: ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    target = _target(node)
    if source is None or target is None:
        return False
    if list(source.shape or ()) == list(result.shape or ()) and not result.is_graph_output():
        result.replace_all_uses_with(source)
        return True
    shape = ir.Node("", "Constant", [], [ir.AttrInt64s("value_ints", target)], name=f"{node.name}_shape")
    model.graph.insert_before(node, shape)
    node.replace_input_with(1, shape.outputs[0])
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)
    return True


def _target(node: ir.Node) -> list[int] | None:
    """The shape with 0 for a copied dimension and one -1 to compute; None if this cannot express it."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or result.shape is None:
        return None
    target: list[int] = []
    for index, dimension in enumerate(result.shape):
        if isinstance(dimension, int):
            target.append(dimension)
        elif index < len(source.shape) and source.shape[index] == dimension:
            target.append(0)
        else:
            target.append(-1)
    says_it = target.count(-1) <= 1 and 0 not in [d for d in result.shape if isinstance(d, int)]
    return target if says_it else None
