"""Models as the compiler plans them, of a checkpoint or of a configuration alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model, plan_without_weights
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.caches import CacheKind
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import Recipe, TargetRecipe


def outlined(
    source: Checkpoint | PreTrainedConfig, context: int = 96, caches: CacheKind = "float16", **wanted: Any
) -> Model:
    """A target; `wanted` are settings of its part of the recipe."""
    target = TargetRecipe(checkpoint="x", **{"format": "fp16", "tied": "twice"} | wanted)
    recipe = Recipe(name="x", target=target, caches=caches, prefill_chunk=context)
    return Model("target", source, target, recipe, context)


def exported(config: PreTrainedConfig, *given: Any, **wanted: Any) -> ExportedGraph:
    """The graph of `outlined`."""
    return plan_without_weights(outlined(config, *given, **wanted)).exported


def written(checkpoint: Checkpoint, folder: Path, *given: Any, **wanted: Any) -> ModelEntry:
    """Write the model of `outlined` into a folder."""
    return write_model(plan_model(outlined(checkpoint, *given, **wanted)), folder, lambda count: None).entry
