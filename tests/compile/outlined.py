"""Graphs of configurations, as the compiler exports them before it reads a weight."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.formats.caches import CacheKind
from mxspec.recipes.recipe import Recipe, TargetRecipe


def outlined(config: PreTrainedConfig, context: int = 96, caches: CacheKind = "float16", **wanted: Any) -> Model:
    """A target without a checkpoint; `wanted` are settings of its part of the recipe."""
    target = TargetRecipe(checkpoint="x", **{"format": "fp16", "tied": "twice"} | wanted)
    return Model("target", config, target, Recipe(name="x", target=target, caches=caches), context)


def exported(config: PreTrainedConfig, *given: Any, **wanted: Any) -> ExportedGraph:
    """The graph of `outlined`."""
    return plan_without_weights(outlined(config, *given, **wanted)).exported
