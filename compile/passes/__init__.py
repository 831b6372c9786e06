"""The passes that turn the raw graph into the bundle's graph: functions that change it in place, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.passes.embeddings import StoredOnce, halve_embeddings, never, share_tied_tables
from mxspec.compile.passes.fusions import fuse_gates, fuse_projections, fuse_residuals
from mxspec.compile.passes.qkv import fuse_qkv, join_partial_rotations
from mxspec.compile.passes.routers import pack_routers
from mxspec.compile.passes.tidying import fold_constants, fuse_rms_norms, stamp, sweep, take_values_out
from mxspec.compile.passes.views import cancel_transposes, drop_flattenings, make_reshapes_constant


def run_passes(
    model: ir.Model,
    specs: dict[str, WeightSpec],
    stored_once: StoredOnce = never,
    beside: Sequence[WeightSpec] = (),
) -> None:
    """Change the graph in place; `specs` describes every initializer, and is changed with them.

    `stored_once` says whether a matrix's parameter that is also the embedding is looked up in the matrix's tiles;
    `beside` has the weights of another graph in the same file. Unused nodes stay until `sweep`.
    """
    take_values_out(model, specs)
    make_reshapes_constant(model)
    fold_constants(model)
    fuse_rms_norms(model)
    cancel_transposes(model)
    drop_flattenings(model)
    pack_routers(model, specs)
    fuse_projections(model, specs)
    join_partial_rotations(model)
    fuse_qkv(model)
    fuse_gates(model)
    fuse_residuals(model)
    sweep(model)
    share_tied_tables(model, specs, stored_once, beside)
    halve_embeddings(model, specs)
    stamp(model)
