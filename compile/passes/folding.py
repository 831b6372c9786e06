"""onnxscript's own passes: fold constants, fuse RMS norms."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.optimizer import optimize_ir
from onnxscript.rewriter.rules.fusion._rms_normalization import fuse_rms_normalization

from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.quiet import quiet_logger

_WARNS = "onnx_ir"  # warns about initializers without a value: here all of them


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
