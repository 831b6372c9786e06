"""The first passes, which leave a plain graph, and the last ones, which remove what others left."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.optimizer import optimize_ir
from onnxscript.rewriter.rules.fusion._rms_normalization import fuse_rms_normalization

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import DOMAIN, OPSET
from mxspec.compile.quiet import quiet_logger

INLINE_ENTRIES = 64  # constants up to this size stay inside the graph file
MAX_IR_VERSION = 13  # of ONNX Runtime 1.31
_WARNS = "onnx_ir"  # warns about initializers without a value: here all of them


def take_values_out(model: ir.Model, specs: Mapping[str, WeightSpec]) -> None:
    """Remove the trace's fake values from initializers, which no pass may read; give small constants their real ones.

    Requires a spec for every initializer.
    """
    unknown = model.graph.initializers.keys() - specs.keys()
    assert not unknown, f"initializers that are no parameters or buffers: {sorted(unknown)}"
    for name, value in model.graph.initializers.items():
        real = specs[name].value
        value.const_value = None if real is None or real.size > INLINE_ENTRIES else ir.tensor(real, name=name)


def fold_constants(model: ir.Model) -> None:
    """Fold constants, common subexpressions and identities. Requires that no initializer has a fake value."""
    with quiet_logger(_WARNS):
        optimize_ir(model, onnx_shape_inference=False)


def fuse_rms_norms(model: ir.Model) -> None:
    """Fuse the nodes of RMS norms into RMSNormalization. Requires folded constants: epsilon, exponent."""
    with quiet_logger(_WARNS):
        fuse_rms_normalization(model)


def sweep(model: ir.Model) -> None:
    """Remove the unused nodes and initializers that earlier passes left."""
    RemoveUnusedNodesPass()(model)


def stamp(model: ir.Model) -> None:
    """Set opset imports and IR version by the contract, and remove torch's notes about its own source."""
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
