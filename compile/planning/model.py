"""A model of a bundle: the one value that the stages of a compile take, complete and hand on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.open_checkpoint import Commits
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.graph.exported_graph import ExportedGraph, WeightSpec
from mxspec.compile.planning.context import source_length
from mxspec.compile.planning.pair import TokenIds
from mxspec.compile.trace.trace import Traces
from mxspec.formats.caches import CacheKind
from mxspec.formats.manifest import BudgetEntry, ModelEntry, ModelName, RefereeEntry
from mxspec.formats.safetensors_file import Layout
from mxspec.formats.weight_format import Activations
from mxspec.recipes.recipe import Recipe, Rounding, TargetRecipe


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model before its weights are written.

    `borrowed` tables are in the target's weights file, at these offsets.
    """

    name: ModelName
    weight_format: str
    exported: ExportedGraph
    sources: Tensors
    ignored: tuple[str, ...]
    layout: Layout
    specializations: tuple[int, ...]
    activations: Activations = "int16"
    borrowed: Mapping[str, int] = field(default_factory=dict)

    @property
    def stored(self) -> list[WeightSpec]:
        """The weights in its own weights file."""
        return [spec for spec in self.exported.weights if spec.name not in self.borrowed]

    @property
    def reads_states(self) -> bool:
        """Whether it is a draft that reads the target's hidden states."""
        return self.exported.states is not None and self.exported.states.own is not None

    @property
    def read_bytes(self) -> int:
        """Bytes of the checkpoint that packing will read; a tied head that is stored twice is read twice."""
        return sum(self.sources[source].bytes for spec in self.stored for source in spec.sources)

    @property
    def weight_count(self) -> int:
        """Number of weights in the checkpoint that it is made from."""
        return sum(math.prod(source.shape) for source in self.sources.values())

    @property
    def shares_table(self) -> bool:
        """Whether embedding and head are stored once."""
        return any(spec.looked_up for spec in self.exported.weights)


@dataclass(frozen=True, slots=True)
class RefereeVerdict:
    """The result of comparing a twin: its errors, and the windows of its graph's layers."""

    entry: RefereeEntry
    windows: tuple[int, ...]


@dataclass(slots=True)
class Model:
    """What was asked of a model, and what the stages of compile/pipeline.py decide, in their order.

    Its source is a checkpoint, or for an outline a configuration alone. `wanted` is its part of the `recipe`; a budget
    adds the format of each matrix. `commits` were fetched from the hub. `known` is the number of token ids that it has
    logits for. `hidden_state_outputs` are the layers whose inputs its graph gives, and `rows` int64[n] those that its
    head keeps, None for all. `traces` are the raw graphs that it is exported from, in any formats.
    """

    name: ModelName
    source: Checkpoint | PreTrainedConfig
    wanted: TargetRecipe
    recipe: Recipe
    context_length: int = 0
    hidden_state_outputs: tuple[int, ...] = ()
    rows: Ids | None = None
    commits: Commits = field(default_factory=dict)
    traces: Traces = field(default_factory=Traces)
    known: int = 0
    budget: BudgetEntry | None = None
    rounding: Rounding = "nearest"
    calibration_tokens: int = 0
    tokens: TokenIds = field(init=False)
    verdict: RefereeVerdict = field(init=False)
    plan: ModelPlan = field(init=False)
    entry: ModelEntry = field(init=False)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of a model that is no outline."""
        assert isinstance(self.source, Checkpoint)
        return self.source

    @property
    def config(self) -> PreTrainedConfig:
        """Its configuration."""
        return self.source.config if isinstance(self.source, Checkpoint) else self.source

    @property
    def source_length(self) -> int | None:
        """The most tokens of a source, None for a model without an encoder."""
        return source_length(self.recipe, self.config)

    @property
    def caches(self) -> CacheKind:
        """The type of its caches: a baseline, which the others are compared with, has none in MXINT8."""
        return "float16" if self.name == "baseline" and self.recipe.caches == "mxint8" else self.recipe.caches
