"""Parts of a value along its last axis, cut out by any operator."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


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
