"""From the bundle's graph to standard operators: a table with the lowering of each operator, and the walk over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from mxspec.compile.interchange.lowering.attention import (
    lower_attention,
    lower_qkv_attention,
    lower_rotary_embedding,
)
from mxspec.compile.interchange.lowering.experts import lower_experts
from mxspec.compile.interchange.lowering.nodes import Call, Nodes
from mxspec.compile.interchange.lowering.rows import (
    lower_add_layer_norm,
    lower_add_rms_norm,
    lower_gather,
    lower_geglu,
    lower_matmul,
    lower_reshape,
    lower_rms_norm,
    lower_swiglu,
)
from mxspec.formats.errors import MxspecError

Lowering = Callable[[ir.Node, Nodes, Call], tuple[ir.Value, ...]]

LOWERINGS: Mapping[tuple[str, str], Lowering] = {
    ("mxspec", "PackedMatMul"): lower_matmul,
    ("mxspec", "PackedGather"): lower_gather,
    ("mxspec", "PackedExperts"): lower_experts,
    ("mxspec", "QkvAttention"): lower_qkv_attention,
    ("mxspec", "Attention"): lower_attention,
    ("mxspec", "RotaryEmbedding"): lower_rotary_embedding,
    ("mxspec", "AddRMSNorm"): lower_add_rms_norm,
    ("mxspec", "AddLayerNorm"): lower_add_layer_norm,
    ("mxspec", "SwiGLU"): lower_swiglu,
    ("mxspec", "GeGLU"): lower_geglu,
    ("", "RMSNormalization"): lower_rms_norm,  # added in opset 23
    ("", "Reshape"): lower_reshape,
}
"""Each makes the nodes that do what a node does, in operators of opset 21, and returns the values of its outputs."""


def lower(model: ir.Model, call: Call) -> None:
    """Replace every operator of the table in place. Raises MxspecError for an operator that is not in the table."""
    graph = model.graph
    for node in list(graph):
        lowering = LOWERINGS.get((node.domain, node.op_type))
        if lowering is None:
            if node.domain:
                raise MxspecError(f"operator {node.domain}::{node.op_type} has no form in standard operators")
            continue
        nodes = Nodes()
        results = lowering(node, nodes, call)
        graph.insert_before(node, nodes.nodes)
        for new, old in zip(results, node.outputs, strict=True):
            new.shape, new.type = old.shape, old.type  # other lowerings read them
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
