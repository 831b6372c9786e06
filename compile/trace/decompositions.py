"""torch's decompositions of a traced program, which trace it all again: more than half the time of an export.

Most programs have nothing that is decomposed but a few operators that change nothing. Those are taken out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, Node

aten = torch.ops.aten
# Operators that torch composes of others, but keeps for the exporter.
_KEPT = {
    aten.chunk.default,
    aten.layer_norm.default,
    aten.linear.default,
    aten.matmul.default,
    aten.softmax.int,
    aten.sym_size.int,
    aten.type_as.default,
}


def decompose_quickly(program: ExportedProgram) -> None:
    """Let `program.run_decompositions`, which torch.onnx.export calls, trace again only where it must.

    Elsewhere it changes the program itself. The names of a graph's values differ then, its nodes and weights do not.
    """
    by_tracing = program.run_decompositions

    def run(table: Mapping[Any, Any] | None = None, **settings: bool) -> ExportedProgram:
        if table is None or settings or not all(_is_simple(node, table) for node in program.graph.nodes):
            decomposed: ExportedProgram = by_tracing(table, **settings)
            return decomposed
        _simplify(program.graph)
        return program

    program.run_decompositions = run


def _is_simple(node: Node, table: Mapping[Any, Any]) -> bool:
    """Whether a node stays as it is, or `_simplify` knows it."""
    operator = node.target
    if isinstance(operator, HigherOrderOperator):  # has graphs of its own
        return False
    if not isinstance(operator, OpOverload) or _changes_nothing(node):
        return True
    if operator is aten.reshape.default:
        return bool(node.all_input_nodes[0].meta["val"].is_contiguous())  # others may have no view of that shape
    if operator in table or operator._schema.is_mutable:
        return False
    return operator in _KEPT or not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _changes_nothing(node: Node) -> bool:
    """Whether it is a conversion to the type that its input has, or a dropout outside training; not an output."""
    if any(user.op == "output" for user in node.users):  # the program's signature holds its name
        return False
    if node.target is aten.dropout.default:
        return not node.args[2]
    if node.target not in (aten.to.dtype, aten.to.dtype_layout):
        return False
    before, after = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return bool((before.dtype, before.device, before.layout) == (after.dtype, after.device, after.layout))


def _simplify(graph: Graph) -> None:
    for node in list(graph.nodes):
        if _changes_nothing(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
        elif node.target is aten.reshape.default:
            node.target = aten.view.default
