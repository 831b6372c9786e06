"""The first passes, which leave a plain graph, and the last ones, which remove what others left."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.optimizer import optimize_ir
from onnxscript.rewriter.rules.fusion._rms_normalization import fuse_rms_normalization

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import DOMAIN, OPSET
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.quiet import quiet_logger

INLINE_ENTRIES = 64  # constants up to this size stay inside the graph file
MAX_IR_VERSION = 13  # of ONNX Runtime 1.31
_WARNS = "onnx_ir"  # warns about initializers without a value: here all of them


class TakeValuesOut(GraphPass):
    """Remove the trace's fake values from initializers, which no pass may read; give small constants their real ones.

    Requires a spec for every initializer.
    """

    def __init__(self, specs: Mapping[str, WeightSpec]) -> None:
        self._specs = specs

    def requires(self, model: ir.Model) -> None:
        unknown = model.graph.initializers.keys() - self._specs.keys()
        assert not unknown, f"initializers that are no parameters or buffers: {sorted(unknown)}"

    def change(self, model: ir.Model) -> int:
        for name, value in model.graph.initializers.items():
            real = self._specs[name].value
            inline = real is not None and real.size <= INLINE_ENTRIES
            value.const_value = ir.tensor(real, name=name) if inline and real is not None else None
        return len(model.graph.initializers)

    def ensures(self, model: ir.Model) -> None:
        values = (value.const_value for value in model.graph.initializers.values())
        assert all(value is None or value.size <= INLINE_ENTRIES for value in values)


class FoldConstants(GraphPass):
    """Fold constants, common subexpressions and identities. Requires that no initializer has a fake value."""

    def requires(self, model: ir.Model) -> None:
        values = (value.const_value for value in model.graph.initializers.values())
        assert all(value is None or isinstance(value, ir.Tensor) for value in values)

    def change(self, model: ir.Model) -> int:
        before = len(model.graph)
        with quiet_logger(_WARNS):
            optimize_ir(model, onnx_shape_inference=False)
        return max(0, before - len(model.graph))


class FuseRmsNorms(GraphPass):
    """Fuse the nodes of RMS norms into RMSNormalization. Requires folded constants: epsilon, exponent."""

    def change(self, model: ir.Model) -> int:
        before = _norms(model)
        with quiet_logger(_WARNS):
            fuse_rms_normalization(model)
        return _norms(model) - before


def _norms(model: ir.Model) -> int:
    return sum(node.op_type == "RMSNormalization" for node in model.graph)


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
