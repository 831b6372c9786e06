"""Views of values: constant shapes, transposes of heads that cancel, and rows kept in their batch of one."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.passes.nodes import last_dimension, put_behind

_SWAP = (0, 2, 1, 3)  # its own inverse
_LAST_AXIS_OPS = {"RMSNormalization", "LayerNormalization", "Slice", "Split", "Concat"}
_ROW_WISE = {PACKED_MATMUL.name, "LayerNormalization", "RMSNormalization", "Relu", "Gelu", "Sigmoid"}
_ROW_WISE_PAIRS = {"Add", "Mul"}  # if both inputs are such views


def make_reshapes_constant(model: ir.Model) -> None:
    """Give a Reshape an equivalent constant shape if there is one; remove a Reshape without effect."""
    for node in [node for node in model.graph if node.op_type == "Reshape"]:
        source, result = node.inputs[0], node.outputs[0]
        target = _target(node)
        if source is None or target is None:
            continue
        if list(source.shape or ()) == list(result.shape or ()) and not result.is_graph_output():
            result.replace_all_uses_with(source)
            continue
        shape = ir.Node("", "Constant", [], [ir.AttrInt64s("value_ints", target)], name=f"{node.name}_shape")
        model.graph.insert_before(node, shape)
        node.replace_input_with(1, shape.outputs[0])
        node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)


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


def cancel_transposes(model: ir.Model) -> None:
    """Move transposes of heads after operators that work along the last axis only; two that meet cancel."""
    for node in list(model.graph):
        if _meets(node):
            swap = node.inputs[0].producer()  # type: ignore[union-attr]
            node.outputs[0].replace_all_uses_with(swap.inputs[0])  # type: ignore[union-attr, arg-type]
        elif node.op_type in _LAST_AXIS_OPS and _along_last_axis(node):
            _move_swap(node)


def _meets(node: ir.Node) -> bool:
    """Whether this node undoes another transpose."""
    source = node.inputs[0] if _is_swap(node) else None
    return source is not None and _is_swap(source.producer()) and not node.outputs[0].is_graph_output()


def _move_swap(node: ir.Node) -> None:
    data = range(len(node.inputs)) if node.op_type == "Concat" else range(1)
    swaps = [value.producer() if (value := node.inputs[i]) is not None else None for i in data]
    if not all(_is_swap(swap) for swap in swaps):
        return
    for i, swap in zip(data, swaps, strict=True):
        assert swap is not None
        node.replace_input_with(i, swap.inputs[0])
    for output in node.outputs:
        swap = ir.Node("", "Transpose", [output], [ir.AttrInt64s("perm", _SWAP)], name=f"{output.name}_swap")
        result = swap.outputs[0]
        result.name, result.shape, result.type = f"{output.name}_swapped", output.shape, output.type
        if output.shape is not None:
            output.shape = ir.Shape([output.shape[axis] for axis in _SWAP])
        put_behind(node, output, swap)
        # The walk has a list of the old nodes only, so a swap further down meets this one later.


def _is_swap(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == _SWAP


def _along_last_axis(node: ir.Node) -> bool:
    if node.op_type == "Slice":
        axes = node.inputs[3] if len(node.inputs) > 3 else None
        constant = None if axes is None or axes.const_value is None else axes.const_value.numpy().tolist()
        return constant in ([3], [-1])
    axis = node.attributes.get("axis")
    return axis is not None and axis.as_int() in (3, -1)


def drop_flattenings(model: ir.Model) -> None:
    """Move flat views of rows after the operators that treat each row alone; a view and the view back cancel.

    An operator that needs the flat form keeps the view in front of it.
    """
    for node in list(model.graph):
        if node.op_type in _ROW_WISE and node.attributes.get_int("axis", -1) == -1:
            _move_view(node, 1)
        elif node.op_type in _ROW_WISE_PAIRS:
            _move_view(node, 2)
        elif node.op_type == "Reshape":
            source, result = _unflattened(node.inputs[0]), node.outputs[0]
            if source is not None and source.shape == result.shape and not result.is_graph_output():
                result.replace_all_uses_with(source)


def _move_view(node: ir.Node, data_inputs: int) -> None:
    sources = [_unflattened(value) for value in node.inputs[:data_inputs]]
    result = node.outputs[0]
    flat, width = result.shape, last_dimension(result)
    if None in sources or len(node.outputs) != 1 or flat is None or width is None or result.is_graph_output():
        return
    for index, source in enumerate(sources):
        node.replace_input_with(index, source)
    assert sources[0] is not None
    assert sources[0].shape is not None
    result.shape = ir.Shape([*sources[0].shape[:2], width])
    target = ir.Node("", "Constant", [], [ir.AttrInt64s("value_ints", [-1, width])], name=f"{node.name}_rows")
    view = ir.Node("", "Reshape", [result, target.outputs[0]], name=f"{node.name}_flat")
    view.outputs[0].name, view.outputs[0].shape, view.outputs[0].type = f"{result.name}_flat", flat, result.type
    put_behind(node, result, target, view)


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
