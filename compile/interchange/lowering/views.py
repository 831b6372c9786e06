"""Views that were traced with a batch of one, for batches of any size."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes
from mxspec.formats.errors import MxspecError


def lower_reshape(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """Reshape of [1, tokens, ...] to [1, tokens, ...] copies both dimensions, of any size.

    Rows [tokens, n] of all texts of a batch follow one another: a view of [1, tokens, n] as that stays, and the view
    back takes both dimensions from the token ids.
    """
    x, target = node.inputs
    constant = None if target is None else ir.convenience.get_const_tensor(target)
    shape = [] if constant is None else constant.numpy().tolist()
    result = node.outputs[0].shape
    if x is None or x.shape is None or result is None:
        raise MxspecError(f"node {node.name}: a Reshape of an unknown shape has no standard form")
    if shape[:2] == [1, 0] and len(shape) > 2:
        return (nodes.reshape(x, 0, 0, *shape[2:]),)
    if (len(x.shape), len(shape)) == (3, 2) and shape[0] == -1 and list(x.shape[1:]) == list(result):
        return (nodes.reshape(x, *shape),)
    if x.shape[0] == result[0] != 1 and shape[0] in (0, -1):  # each row for itself, such as scores in groups
        return (nodes.reshape(x, 0, *shape[1:]),)
    if (len(x.shape), len(shape)) == (2, 3) and list(x.shape) == list(result[1:]):
        return (nodes.reshape_behind(nodes.op("Shape", [call.tokens]), x, shape[2]),)
    raise MxspecError(f"node {node.name}: a Reshape that needs a batch of one has no standard form")
