"""Attention as products and a softmax over past and new keys and values, and rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from mxspec.compile.interchange.lowering.nodes import Call, Nodes
from mxspec.compile.interchange.lowering.rows import rms_norm
from mxspec.compile.passes.nodes import last_dimension
from mxspec.formats.errors import MxspecError

_NEVER = float(np.finfo(np.float32).min)  # not infinity, so that a row of padding, which sees no key, stays finite


def lower_attention(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """Attention(query [batch, tokens, heads, head_size], key, value, past_key, past_value, ...) → output, presents."""
    query, key, value, past_key, past_value, *rest = node.inputs
    _refuse_scores(node, rest[3:])
    assert query is not None
    assert query.shape is not None
    heads = query.shape[2]
    assert isinstance(heads, int)
    presents = _joined(nodes, call, (past_key, past_value), (key, value))
    output = _attend(nodes, node, call, query, heads, presents)
    return nodes.reshape(output, 0, 0, heads, call.head_size), *presents


def lower_qkv_attention(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """QkvAttention(qkv [batch, tokens, width], past_key, past_value, ...) → output [batch, tokens, width], presents."""
    qkv, past_key, past_value, *_ = node.inputs
    cos, sin, query_norm, key_norm = [*node.inputs[6:], *[None] * 4][:4]
    _refuse_scores(node, node.inputs[10:])
    assert qkv is not None
    width = last_dimension(qkv)
    assert width is not None
    heads = width // call.head_size - 2 * call.kv_heads
    query, key, value = _parts(nodes, node, call, qkv, heads)
    query = _headed(nodes, node, call, query, heads, query_norm)
    key = _headed(nodes, node, call, key, call.kv_heads, key_norm)
    value = _headed(nodes, node, call, value, call.kv_heads, None)
    if cos is not None and sin is not None:
        pairs = bool(node.attributes.get_int("pairs", 0))
        query, key = (rotate(nodes, x, cos, sin, call.head_size, pairs=pairs) for x in (query, key))
    presents = _joined(nodes, call, (past_key, past_value), (key, value))
    return _attend(nodes, node, call, query, heads, presents), *presents


def _refuse_scores(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    if any(value is not None for value in inputs):
        raise MxspecError(
            f"node {node.name}: attention with the slopes of ALiBi, with sinks or with biases by distance "
            "has no form in standard operators"
        )


def _parts(nodes: Nodes, node: ir.Node, call: Call, qkv: ir.Value, heads: int) -> list[ir.Value]:
    """Queries, keys and values of a row, or of each key-value head's piece of a row if they are interleaved."""
    sizes = [heads * call.head_size, *[call.kv_heads * call.head_size] * 2]
    if node.attributes.get_int("interleaved", 0):
        sizes = [size // call.kv_heads for size in sizes]
        qkv = nodes.reshape(qkv, 0, 0, call.kv_heads, sum(sizes))
    return list(nodes.split(qkv, -1, sizes))


def _headed(nodes: Nodes, node: ir.Node, call: Call, x: ir.Value, heads: int, norm: ir.Value | None) -> ir.Value:
    """[batch, tokens, heads, head_size], normed: each head where the weight is that long, else all together."""
    epsilon = node.attributes.get_float("norm_epsilon", 0.0)
    if norm is not None and last_dimension(norm) != call.head_size:
        x, norm = rms_norm(nodes, x, norm, epsilon), None
    x = nodes.reshape(x, 0, 0, heads, call.head_size)
    return x if norm is None else rms_norm(nodes, x, norm, epsilon)


def _joined(
    nodes: Nodes, call: Call, pasts: tuple[ir.Value | None, ...], new: tuple[ir.Value | None, ...]
) -> tuple[ir.Value, ir.Value]:
    """Past keys and values [batch, kv_heads, past, head_size] and the new ones after them, in the cache's type."""
    joined = []
    for past, x in zip(pasts, new, strict=True):
        assert x is not None
        x = nodes.transpose(x, 0, 2, 1, 3)
        x = x if call.cache_dtype == ir.DataType.FLOAT else nodes.cast(x, call.cache_dtype)
        joined.append(nodes.op("Concat", [past, x], {"axis": 2}))
    return joined[0], joined[1]


def _attend(
    nodes: Nodes, node: ir.Node, call: Call, query: ir.Value, heads: int, presents: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """softmax(query · keyᵀ · scale) · value as [batch, tokens, heads · head_size].

    If queries are grouped, both sides have the axes [batch, kv_heads, heads of a group, ...].
    """
    key, value = (x if call.cache_dtype == ir.DataType.FLOAT else nodes.cast(x, ir.DataType.FLOAT) for x in presents)
    query, key = nodes.transpose(query, 0, 2, 1, 3), nodes.transpose(key, 0, 1, 3, 2)
    if call.grouped:
        query = nodes.reshape(query, 0, call.kv_heads, heads // call.kv_heads, -1, call.head_size)
        key, value = nodes.unsqueeze(key, 2), nodes.unsqueeze(value, 2)
    scores = nodes.op("Mul", [nodes.op("MatMul", [query, key]), nodes.number(node.attributes["scale"].as_float())])
    if cap := node.attributes.get_float("softcap", 0.0):
        scores = nodes.op("Tanh", [nodes.op("Div", [scores, nodes.number(cap)])])
        scores = nodes.op("Mul", [scores, nodes.number(cap)])
    mask = call.masks[node.attributes.get_int("window", 0)]
    weights = nodes.op("Softmax", [nodes.op("Where", [mask, scores, nodes.number(_NEVER)])], {"axis": -1})
    output = nodes.op("MatMul", [weights, value])
    if call.grouped:
        output = nodes.reshape(output, 0, heads, -1, call.head_size)
    return nodes.reshape(nodes.transpose(output, 0, 2, 1, 3), 0, 0, heads * call.head_size)


def lower_rotary_embedding(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """RotaryEmbedding(x [batch, tokens, heads, head_size], cos, sin [batch, tokens, rotary / 2])."""
    x, cos, sin = node.inputs
    assert x is not None
    assert cos is not None
    assert sin is not None
    return (rotate(nodes, x, cos, sin, call.head_size, pairs=bool(node.attributes.get_int("pairs", 0))),)


def rotate(nodes: Nodes, x: ir.Value, cos: ir.Value, sin: ir.Value, head_size: int, *, pairs: bool = False) -> ir.Value:
    """(first · cos − second · sin, second · cos + first · sin) of the halves of the first entries of each head.

    These entries are twice the number of the tables' columns. With pairs, the halves are the even and the odd entries.
    """
    half = last_dimension(cos)
    assert half is not None
    rotary, rest = 2 * half, list[ir.Value]()
    if rotary < head_size:
        x, *rest = nodes.split(x, -1, (rotary, head_size - rotary))
    x = nodes.reshape(x, 0, 0, 0, half, 2) if pairs else x
    first, second = nodes.split(x, -1, (1, 1) if pairs else (half, half))
    cos, sin = (nodes.unsqueeze(table, 2, *([4] if pairs else [])) for table in (cos, sin))
    turned = [
        nodes.op("Sub", [nodes.op("Mul", [first, cos]), nodes.op("Mul", [second, sin])]),
        nodes.op("Add", [nodes.op("Mul", [second, cos]), nodes.op("Mul", [first, sin])]),
    ]
    if pairs:
        joined = nodes.reshape(nodes.op("Concat", turned, {"axis": -1}), 0, 0, 0, rotary)
        return nodes.op("Concat", [joined, *rest], {"axis": -1}) if rest else joined
    return nodes.op("Concat", [*turned, *rest], {"axis": -1})
