"""Keep rows in their batch of one: remove views of [1, tokens, n] as [tokens, n], and the views back."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.segments import last_dimension

_ROW_WISE = {PACKED_MATMUL.name, "LayerNormalization", "RMSNormalization", "Relu", "Gelu", "Sigmoid"}
_ROW_WISE_PAIRS = {"Add", "Mul"}  # if both inputs are such views


class DropFlattenings(GraphPass):
    """Move such views after the operators that treat each row alone; a view and the view back cancel.

    An operator that needs the flat form keeps the view in front of it.
    """

    def change(self, model: ir.Model) -> int:
        return sum(_step(model, node) for node in list(model.graph))

    def ensures(self, model: ir.Model) -> None:
        assert not any(_views_back(node) and node.outputs[0].uses() for node in model.graph)


def _step(model: ir.Model, node: ir.Node) -> bool:
    if node.op_type in _ROW_WISE and node.attributes.get_int("axis", -1) == -1:
        return _move_behind(model, node, 1)
    if node.op_type in _ROW_WISE_PAIRS:
        return _move_behind(model, node, 2)
    source = _unflattened(node.inputs[0]) if _views_back(node) else None
    if source is None:
        return False
    node.outputs[0].replace_all_uses_with(source)
    return True


def _views_back(node: ir.Node) -> bool:
    """Whether this node is the view back."""
    source = _unflattened(node.inputs[0]) if node.op_type == "Reshape" else None
    result = node.outputs[0]
    return source is not None and source.shape == result.shape and not result.is_graph_output()


def _move_behind(model: ir.Model, node: ir.Node, data_inputs: int) -> bool:
    sources = [_unflattened(value) for value in node.inputs[:data_inputs]]
    result = node.outputs[0]
    flat, width = result.shape, last_dimension(result)
    if None in sources or len(node.outputs) != 1 or flat is None or width is None or result.is_graph_output():
        return False
    for index, source in enumerate(sources):
        node.replace_input_with(index, source)
    assert sources[0] is not None
    assert sources[0].shape is not None
    result.shape = ir.Shape([*sources[0].shape[:2], width])
    target = ir.Node("", "Constant", [], [ir.AttrInt64s("value_ints", [-1, width])], name=f"{node.name}_rows")
    view = ir.Node("", "Reshape", [result, target.outputs[0]], name=f"{node.name}_flat")
    view.outputs[0].name, view.outputs[0].shape, view.outputs[0].type = f"{result.name}_flat", flat, result.type
    for use in list(result.uses()):
        if use.node is not view:
            use.node.replace_input_with(use.idx, view.outputs[0])
    model.graph.insert_after(node, [target, view])
    return True


def _unflattened(value: ir.Value | None) -> ir.Value | None:
    """The value that this is a flat view of: it has one more dimension, and the same last one."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Reshape":
        return None
    source = node.inputs[0]
    if source is None or source.shape is None or value.shape is None:
        return None
    ranks, last = (len(source.shape), len(value.shape)), source.shape[-1]
    return source if ranks == (3, 2) and isinstance(last, int) and last == value.shape[-1] else None
