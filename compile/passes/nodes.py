"""Nodes of mxspec's operators: find them, make them, and put them in the place of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
