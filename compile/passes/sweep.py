"""The last passes: remove unused nodes, and notes on how the file was made."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from mxspec.compile.graph.operators import DOMAIN, OPSET
from mxspec.compile.passes.graph_pass import GraphPass

MAX_IR_VERSION = 13  # of ONNX Runtime 1.31


class Sweep(GraphPass):
    """Remove the unused nodes and initializers that earlier passes left."""

    def change(self, model: ir.Model) -> int:
        before = len(model.graph)
        RemoveUnusedNodesPass()(model)
        return before - len(model.graph)

    def ensures(self, model: ir.Model) -> None:
        for node in model.graph:
            assert any(value.uses() or value.is_graph_output() for value in node.outputs), node.name


class Stamp(GraphPass):
    """Set opset imports and IR version by the contract, and remove torch's notes about its own source."""

    def change(self, model: ir.Model) -> int:
        model.ir_version = min(model.ir_version, MAX_IR_VERSION)
        model.graph.opset_imports[DOMAIN] = OPSET
        model.metadata_props.clear()
        model.graph.metadata_props.clear()
        for node in model.graph:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*model.graph.inputs, *model.graph.initializers.values()):
            value.metadata_props.clear()
        return len(model.graph)
