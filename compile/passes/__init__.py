"""The passes that turn the raw graph into the bundle's graph, in order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.passes.embeddings import HalveEmbeddings, ShareTiedTables, StoredOnce, never
from mxspec.compile.passes.fusions import FuseGates, FuseResiduals
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.projections import FuseProjections
from mxspec.compile.passes.qkv import FuseQkv, JoinPartialRotations
from mxspec.compile.passes.routers import PackRouters
from mxspec.compile.passes.tidying import FoldConstants, FuseRmsNorms, Stamp, Sweep, TakeValuesOut
from mxspec.compile.passes.views import CancelTransposes, DropFlattenings, MakeReshapesConstant

__all__ = ["list_passes", "run_passes"]


def list_passes(
    specs: dict[str, WeightSpec], stored_once: StoredOnce = never, beside: Sequence[WeightSpec] = ()
) -> tuple[GraphPass, ...]:
    """All passes in order; `specs` describes every initializer, and the passes update it.

    `stored_once` says whether a matrix's parameter that is also the embedding is looked up in the matrix's tiles;
    `beside` has the weights of another graph in the same file.
    """
    return (
        TakeValuesOut(specs),
        MakeReshapesConstant(),
        FoldConstants(),
        FuseRmsNorms(),
        CancelTransposes(),
        DropFlattenings(),
        PackRouters(specs),
        FuseProjections(specs),
        JoinPartialRotations(),
        FuseQkv(),
        FuseGates(),
        FuseResiduals(),
        Sweep(),
        ShareTiedTables(specs, stored_once, beside),
        HalveEmbeddings(specs),
        Stamp(),
    )


def run_passes(
    model: ir.Model,
    specs: dict[str, WeightSpec],
    stored_once: StoredOnce = never,
    beside: Sequence[WeightSpec] = (),
) -> dict[str, int]:
    """Change the graph and its specs in place; return the number of changes of each pass, by name."""
    return {type(step).__name__: step.run(model) for step in list_passes(specs, stored_once, beside)}
