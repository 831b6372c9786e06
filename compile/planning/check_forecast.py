"""Check a forecast: make the graph from the configuration, and lay out its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from transformers import PreTrainedConfig

from mxspec.compile.heads.mtp import MtpConfig
from mxspec.compile.planning.forecast import ModelForecast
from mxspec.compile.planning.model import ModelPlan
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.formats.caches import cache_bytes, kept_tokens
from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import ModelName, call_tokens
from mxspec.recipes.recipe import Recipe, TargetRecipe

TOLERANCE = 0.01  # of bytes and memory


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a graph: nodes, packed matrices, bytes of its weights file, of one text's cache, and of a step.

    A step of one token reads `step_bytes` of the matrices: of a mixture's, those of the chosen experts.
    """

    nodes: int
    matrices: frozenset[str]
    file_bytes: int
    cache_bytes: int
    step_bytes: int


def count_graph(
    name: ModelName, config: PreTrainedConfig, wanted: TargetRecipe, recipe: Recipe, context_length: int
) -> Counted:
    """Make the graph of a configuration and count. Raises MxspecError if the graph cannot be made."""
    plan = plan_without_weights(name, config, wanted, recipe, context_length)
    packed = [spec for spec in plan.exported.weights if spec.kind == "matmul"]
    lent = 0
    if isinstance(config, MtpConfig):  # its embedding is the target's
        lent = sum(2 * math.prod(spec.shape) for spec in plan.exported.weights if spec.kind == "embedding")
    return Counted(
        nodes=sum(1 for graph in plan.exported.graphs for _ in graph.graph),
        matrices=frozenset(source for spec in packed for source in spec.sources),
        file_bytes=plan.layout.file_bytes - lent,
        cache_bytes=_cache_bytes(plan),
        step_bytes=_step_bytes(plan),
    )


def compare(expected: ModelForecast, counted: Counted) -> None:
    """Raise CheckFailed if a matrix is not packed, or a figure is off by more than `TOLERANCE`."""
    if missed := sorted(expected.matrices ^ counted.matrices):
        raise CheckFailed(f"{expected.checkpoint}: {len(missed)} matrices are not packed as expected: {missed[0]}")
    for what, said, found in (
        ("file_bytes", expected.file_bytes, counted.file_bytes),
        ("cache_bytes", expected.cache_bytes, counted.cache_bytes),
        ("step_bytes", expected.read_bytes(1), counted.step_bytes),
    ):
        if abs(said - found) > TOLERANCE * found:
            raise CheckFailed(f"{expected.checkpoint}: {what}: predicted {said:,}, but the graph has {found:,}")


def _cache_bytes(plan: ModelPlan) -> int:
    exported, call = plan.exported, call_tokens(plan.specializations)
    kept = kept_tokens(exported.windows, exported.context_length, exported.context_length, call)
    read = 0 if exported.encoder is None else exported.encoder.context_length * exported.layers
    return cache_bytes(exported.caches, exported.kv_heads, exported.head_size, kept + read)


def _step_bytes(plan: ModelPlan) -> int:
    """Bytes of all matrices, but of experts those that one token chooses."""
    experts = plan.exported.experts
    sizes = {spec.name: spec.stored_bytes for spec in plan.exported.weights if spec.kind == "matmul"}
    unread = 0 if experts is None else sum(sizes[name] for name in experts.tensors) * (1 - experts.read_share(1))
    return round(sum(sizes.values()) - unread)
