"""Let attention read the fused product: the operator takes over split, head views, norms and rotation."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from mxspec.compile.graph.operators import ATTENTION, QKV_ATTENTION, ROTARY_EMBEDDING
from mxspec.compile.passes.nodes import (
    Segment,
    is_node_of,
    last_dimension,
    make_node,
    nodes_of,
    put_in_place,
    segment_of,
)

_CACHE = slice(ATTENTION.slot("past_key"), ATTENTION.slot("new_lengths") + 1)  # inputs of both operators


@dataclass(frozen=True, slots=True)
class _Norm:
    """A root-mean-square norm of each head, or of all heads together if the weight is that long."""

    weight: ir.Value
    epsilon: float


@dataclass(frozen=True, slots=True)
class _Operand:
    """Queries, keys or values: their part of a row, and the operations on them before attention."""

    source: ir.Value  # [1, tokens, width]
    groups: int  # equal pieces of a row; columns `start` to `start + size - 1` of each belong here
    start: int
    size: int
    factor: float
    norm: _Norm | None
    tables: tuple[ir.Value, ...]  # of cosines and sines
    pairs: bool  # how they rotate


def fuse_qkv(model: ir.Model) -> None:
    """Replace Attention by QkvAttention if its queries, keys and values, in this order, make up one value.

    The order may hold in each row, or in each head's piece of a row. Queries and keys may be normed and then rotated,
    by the same tables; queries may be scaled. With any other operation on them, the attention is left unchanged.
    Requires fused projections, and rotations of whole heads.
    """
    for node in nodes_of(ATTENTION, model):
        flat = _flat_output(node)
        query, key, value = [_operand(value) for value in node.inputs[: _CACHE.start]]
        if flat is None or query is None or key is None or value is None or not _fit(query, key, value):
            continue
        inputs, attributes = _inputs(node, query, key), _attributes(node, query, key)
        fused = make_node(QKV_ATTENTION, inputs, attributes, name=f"{node.name}_qkv")
        put_in_place(model, node, fused, (flat, *node.outputs[1:]))


def _flat_output(node: ir.Node) -> ir.Value | None:
    """The output as [1, tokens, heads * head_size], if it is used in no other shape."""
    output = node.outputs[0]
    uses = list(output.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Reshape" or output.shape is None:
        return None
    flat = uses[0].node.outputs[0]
    heads, head_size = output.shape[2:]
    same_rows = flat.shape is not None and list(flat.shape[:-1]) == list(output.shape[:2])
    if not same_rows or not isinstance(heads, int) or not isinstance(head_size, int):
        return None
    return flat if last_dimension(flat) == heads * head_size else None


def _fit(query: _Operand, key: _Operand, value: _Operand) -> bool:
    """Whether one row holds exactly these three, and the operator supports the operations on them."""
    start = 0
    for part in (query, key, value):
        if part.source is not query.source or part.groups != query.groups or part.start != start:
            return False
        start += part.size
    rows = query.source.shape is not None and len(query.source.shape) == 3
    whole = rows and start * query.groups == last_dimension(query.source)
    rotated = (query.tables, query.pairs) == (key.tables, key.pairs) and not value.tables
    epsilons = {part.norm.epsilon for part in (query, key) if part.norm is not None}
    return whole and rotated and len(epsilons) <= 1 and value.norm is None and key.factor == value.factor == 1.0


def _inputs(node: ir.Node, query: _Operand, key: _Operand) -> list[ir.Value | None]:
    norms = [None if part.norm is None else part.norm.weight for part in (query, key)]
    return [query.source, *node.inputs[_CACHE], *(query.tables or (None, None)), *norms, *node.inputs[_CACHE.stop :]]


def _attributes(node: ir.Node, query: _Operand, key: _Operand) -> list[ir.Attr]:
    scale = ir.AttrFloat32("scale", node.attributes["scale"].as_float() * query.factor)
    attributes = [scale, *(attribute for attribute in node.attributes.values() if attribute.name != "scale")]
    if norm := query.norm or key.norm:
        attributes.append(ir.AttrFloat32("norm_epsilon", norm.epsilon))
    if query.pairs:
        attributes.append(ir.AttrInt64("pairs", 1))
    if query.groups > 1:
        attributes.append(ir.AttrInt64("interleaved", 1))
    return attributes


def _operand(value: ir.Value | None) -> _Operand | None:
    """Follow queries, keys or values back to the product: rotation, norm of heads, head view, scale or norm of all."""
    value, tables, pairs = _unrotated(value)
    value, norm = _unnormed(value)
    if (piece := _piece_of_head(value)) is not None:
        view = piece.source.producer()
        source = None if view is None or view.op_type != "Reshape" else view.inputs[0]
        groups = None if source is None else _heads(piece.source, last_dimension(source))
        if source is None or groups is None:
            return None
        return _Operand(source, groups, piece.start, piece.size, 1.0, norm, tables, pairs)
    view = None if value is None else value.producer()
    if value is None or view is None or view.op_type != "Reshape":
        return None
    flat, factor = view.inputs[0], 1.0
    if norm is None:
        flat, factor = _unscaled(flat)
        flat, norm = _unnormed(flat) if factor == 1.0 else (flat, None)
    part: Segment | None = segment_of(flat)
    if part is None or _heads(value, part.size) is None:
        return None
    return _Operand(part.source, 1, part.start, part.size, factor, norm, tables, pairs)


def _piece_of_head(value: ir.Value | None) -> Segment | None:
    """The piece of each head's part of a row; the heads of a piece may have an axis (Falcon)."""
    if (piece := segment_of(value)) is not None:
        return piece
    view = None if value is None else value.producer()
    if value is None or view is None or view.op_type != "Reshape":
        return None
    piece = segment_of(view.inputs[0])
    shape = None if piece is None else piece.source.shape
    if piece is None or shape is None or len(shape) != 4 or not isinstance(shape[2], int):
        return None
    return piece if _heads(value, shape[2] * piece.size) else None


def _heads(view: ir.Value, width: int | None) -> int | None:
    """The heads of a view [1, tokens, heads, size] of rows of this width."""
    if view.shape is None or len(view.shape) != 4:
        return None
    heads, size = view.shape[2:]
    return heads if isinstance(heads, int) and isinstance(size, int) and heads * size == width else None


def _unrotated(value: ir.Value | None) -> tuple[ir.Value | None, tuple[ir.Value, ...], bool]:
    node = None if value is None else value.producer()
    if node is None or not is_node_of(ROTARY_EMBEDDING, node):
        return value, (), False
    tables = tuple(table for table in node.inputs[1:] if table is not None)
    return node.inputs[0], tables, bool(node.attributes.get_int("pairs", 0))


def _unnormed(value: ir.Value | None) -> tuple[ir.Value | None, _Norm | None]:
    node = None if value is None else value.producer()
    if node is None or value is None or node.op_type != "RMSNormalization" or value.shape is None:
        return value, None
    weight = node.inputs[1]
    last = node.attributes.get_int("axis", -1) in (-1, len(value.shape) - 1)
    if weight is None or not last or last_dimension(weight) != last_dimension(value):
        return value, None
    return node.inputs[0], _Norm(weight, node.attributes.get_float("epsilon", 1e-5))


def _unscaled(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """The value without a multiplication by one constant, which can become part of the attention's scale."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Mul":
        return value, 1.0
    for x, factor in (node.inputs, node.inputs[::-1]):
        tensor = None if factor is None else ir.convenience.get_const_tensor(factor)
        if tensor is not None and tensor.size == 1:
            return x, float(tensor.numpy().reshape(-1)[0])
    return value, 1.0


def join_partial_rotations(model: ir.Model) -> None:
    """Replace the Concat of a rotated first part and the untouched rest of a value by the rotation of the whole value.

    RotaryEmbedding copies the entries beyond its tables. The two parts must cover the value's last axis.
    """
    for node in [node for node in model.graph if node.op_type == "Concat"]:
        rotation = None if node.inputs[0] is None else node.inputs[0].producer()
        if rotation is None or not is_node_of(ROTARY_EMBEDDING, rotation) or len(node.inputs) != 2:
            continue
        first, rest = segment_of(rotation.inputs[0]), segment_of(node.inputs[1])
        if first is None or rest is None or first.source is not rest.source:
            continue
        covered = (first.start, rest.start, rest.size) == (0, first.size, first.width - first.size)
        if covered and last_dimension(node.outputs[0]) == first.width:
            inputs, name = [first.source, *rotation.inputs[1:]], f"{node.name}_rotated"
            whole = make_node(ROTARY_EMBEDDING, inputs, rotation.attributes.values(), name=name)
            put_in_place(model, node, whole, node.outputs)
