"""Views that were traced with a batch of one, for batches of any size."""

from __future__ import annotations

import onnx_ir as ir

from mxspec.compile.interchange.lowering.call import Call
from mxspec.compile.interchange.lowering.nodes import Nodes
from mxspec.formats.errors import MxspecError


def lower_reshape(node: ir.Node, nodes: Nodes, call: Call) -> tuple[ir.Value, ...]:
    """Reshape of [1, tokens, ...] to [1, tokens, ...]: copies both dimensions, of any size."""
    x, target = node.inputs
    constant = None if target is None else ir.convenience.get_const_tensor(target)
    if x is None or constant is None or constant.size < 3 or list(constant.numpy()[:2]) != [1, 0]:
        raise MxspecError(f"node {node.name}: a Reshape that needs a batch of one has no standard form")
    return (nodes.reshape(x, 0, 0, *constant.numpy()[2:].tolist()),)
