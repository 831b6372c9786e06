"""Nodes of mxspec's operators (find, make and replace them), and parts of values along the last axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from mxspec.compile.graph.operators import DOMAIN, Operator


def is_node_of(operator: Operator, node: ir.Node | None) -> bool:
    """Whether this is a node of this operator of mxspec."""
    return node is not None and (node.domain, node.op_type) == (DOMAIN, operator.name)


def nodes_of(operator: Operator, model: ir.Model) -> list[ir.Node]:
    """All nodes of an operator, in the order of the graph."""
    return [node for node in model.graph if is_node_of(operator, node)]


def make_node(
    operator: Operator, inputs: Sequence[ir.Value | None], attributes: Iterable[ir.Attr] = (), *, name: str
) -> ir.Node:
    """A node with its inputs in order, None for an optional input that is left out."""
    given = list(inputs)
    while given[-1] is None:
        given.pop()
    return ir.Node(DOMAIN, operator.name, given, attributes, num_outputs=len(operator.outputs), name=name)


def put_in_place(model: ir.Model, node: ir.Node, fused: ir.Node, results: Sequence[ir.Value]) -> None:
    """Insert `fused` before `node`; its outputs take the names, shapes, types and readers of `results`.

    The nodes that produced the results stay, unused.
    """
    for new, old in zip(fused.outputs, results, strict=True):
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    model.graph.insert_before(node, fused)


def put_behind(node: ir.Node, result: ir.Value, *made: ir.Node) -> None:
    """Insert `made` after `node`; what reads its `result` then reads what the last of them makes of it."""
    for use in list(result.uses()):
        if use.node is not made[-1]:
            use.node.replace_input_with(use.idx, made[-1].outputs[0])
    assert node.graph is not None
    node.graph.insert_after(node, made)


@dataclass(frozen=True, slots=True)
class Segment:
    """The entries start to start + size - 1 of the last axis of `source`."""

    source: ir.Value
    start: int
    size: int

    @property
    def width(self) -> int:
        """The size of the source's last axis."""
        width = last_dimension(self.source)
        assert width is not None
        return width


def segment_of(value: ir.Value | None) -> Segment | None:
    """The source of `value` and its place there; None unless a Split or Slice with known sizes made it."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type not in ("Split", "Slice"):
        return None
    source, size = node.inputs[0], last_dimension(value)
    if source is None or size is None or last_dimension(source) is None:
        return None
    start = _split_start(node, value) if node.op_type == "Split" else _slice_start(node)
    return None if start is None else Segment(source, start, size)


def last_dimension(value: ir.Value) -> int | None:
    """The size of the last axis; None if unknown."""
    last = None if value.shape is None or len(value.shape) == 0 else value.shape[-1]
    return last if isinstance(last, int) else None


def _split_start(node: ir.Node, value: ir.Value) -> int | None:
    if not _is_last(node.attributes.get_int("axis", 0), node):
        return None
    sizes = [last_dimension(part) for part in node.outputs[: value.index()]]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _slice_start(node: ir.Node) -> int | None:
    start, axis = (_constant(node, index) for index in (1, 3))
    step = _constant(node, 4) if len(node.inputs) > 4 else 1
    return start if axis is not None and _is_last(axis, node) and step == 1 and (start or 0) >= 0 else None


def _is_last(axis: int, node: ir.Node) -> bool:
    source = node.inputs[0]
    return axis == -1 or (source is not None and source.shape is not None and axis == len(source.shape) - 1)


def _constant(node: ir.Node, index: int) -> int | None:
    """The value of an input that is a constant of one entry."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size != 1 else int(tensor.numpy().reshape(-1)[0])
