"""Cancel the transposes between [1, tokens, heads, size], which the operators need, and transformers' order."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.passes.graph_pass import GraphPass

_SWAP = (0, 2, 1, 3)  # its own inverse
_LAST_AXIS_OPS = {"RMSNormalization", "LayerNormalization", "Slice", "Split", "Concat"}


class CancelTransposes(GraphPass):
    """Move head transposes after operators that work along the last axis only; two that meet cancel."""

    def change(self, model: ir.Model) -> int:
        return sum(_step(model, node) for node in list(model.graph))

    def ensures(self, model: ir.Model) -> None:
        assert not any(_meets(node) and node.outputs[0].uses() for node in model.graph)


def _step(model: ir.Model, node: ir.Node) -> bool:
    if _meets(node):
        swap = node.inputs[0].producer()  # type: ignore[union-attr]
        node.outputs[0].replace_all_uses_with(swap.inputs[0])  # type: ignore[union-attr, arg-type]
        return True
    return node.op_type in _LAST_AXIS_OPS and _along_last_axis(node) and _move_behind(model, node)


def _meets(node: ir.Node) -> bool:
    """Whether this node undoes another transpose."""
    source = node.inputs[0] if _is_swap(node) else None
    return source is not None and _is_swap(source.producer()) and not node.outputs[0].is_graph_output()


def _move_behind(model: ir.Model, node: ir.Node) -> bool:
    data = range(len(node.inputs)) if node.op_type == "Concat" else range(1)
    swaps = [value.producer() if (value := node.inputs[i]) is not None else None for i in data]
    if not all(_is_swap(swap) for swap in swaps):
        return False
    for i, swap in zip(data, swaps, strict=True):
        assert swap is not None
        node.replace_input_with(i, swap.inputs[0])
    for output in node.outputs:
        swap = ir.Node("", "Transpose", [output], [ir.AttrInt64s("perm", _SWAP)], name=f"{output.name}_swap")
        result = swap.outputs[0]
        result.name, result.shape, result.type = f"{output.name}_swapped", output.shape, output.type
        if output.shape is not None:
            output.shape = ir.Shape([output.shape[axis] for axis in _SWAP])
        for use in list(output.uses()):
            if use.node is not swap:
                use.node.replace_input_with(use.idx, result)
        model.graph.insert_after(node, swap)
        # The walk has a list of the old nodes only, so a swap further down meets this one later.
    return True


def _is_swap(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == _SWAP


def _along_last_axis(node: ir.Node) -> bool:
    if node.op_type == "Slice":
        axes = node.inputs[3] if len(node.inputs) > 3 else None
        constant = None if axes is None or axes.const_value is None else axes.const_value.numpy().tolist()
        return constant in ([3], [-1])
    axis = node.attributes.get("axis")
    return axis is not None and axis.as_int() in (3, -1)
