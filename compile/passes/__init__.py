"""The passes that turn the raw graph into the one that is shipped, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.passes.embeddings import HalveEmbeddings, ShareTiedTables, StoredOnce, never
from mxspec.compile.passes.flattenings import DropFlattenings
from mxspec.compile.passes.folding import FoldConstants, FuseRmsNorms
from mxspec.compile.passes.gates import FuseGates
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.projections import FuseProjections
from mxspec.compile.passes.qkv import FuseQkv
from mxspec.compile.passes.reshapes import MakeReshapesConstant
from mxspec.compile.passes.residuals import FuseResiduals
from mxspec.compile.passes.rotations import JoinPartialRotations
from mxspec.compile.passes.sweep import Stamp, Sweep
from mxspec.compile.passes.transposes import CancelTransposes
from mxspec.compile.passes.values import TakeValuesOut

__all__ = ["list_passes", "run_passes"]


def list_passes(
    specs: dict[str, WeightSpec], stored_once: StoredOnce = never, beside: Sequence[WeightSpec] = ()
) -> tuple[GraphPass, ...]:
    """All passes in their order; `specs` tells of every initializer and changes with them.

    `stored_once` says of a matrix's parameter whether rows are looked up in its tiles where it is the embedding, too;
    `beside` are the weights of another graph that lie in the same file.
    """
    return (
        TakeValuesOut(specs),
        MakeReshapesConstant(),
        FoldConstants(),
        FuseRmsNorms(),
        CancelTransposes(),
        DropFlattenings(),
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
    """Change the graph and its specs in place; returns in how many places each pass did, by its name."""
    return {type(step).__name__: step.run(model) for step in list_passes(specs, stored_once, beside)}
