"""A node in the place of others: what every fusing pass ends with."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir


def put_in_place(model: ir.Model, node: ir.Node, fused: ir.Node, results: Sequence[ir.Value]) -> None:
    """Insert `fused` before `node`; its outputs take the names, shapes, types and readers of `results`.

    The nodes that gave the results stay, with nobody to read them.
    """
    for new, old in zip(fused.outputs, results, strict=True):
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    model.graph.insert_before(node, fused)
