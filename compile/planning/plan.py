"""The plan of a model: its exported graph, its checkpoint tensors, and the layout of its weights file."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.buffers import find_buffers
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import name_parameters, resolve_names
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.settings.mx_config import take_layout
from mxspec.compile.checkpoint.tensors.derived import Ids, SelectedRows
from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.graph.exported_graph import ExportedGraph, WeightSpec
from mxspec.compile.passes.embeddings import never
from mxspec.compile.planning.context import source_length
from mxspec.compile.planning.export_graph import export_graph
from mxspec.compile.planning.formats import choose_formats, choose_tables, formats_by_config, main_format, own_formats
from mxspec.compile.planning.layout import lay_out, plan_weights
from mxspec.compile.trace.trace import Traces
from mxspec.formats.manifest import BudgetEntry, ModelName
from mxspec.formats.safetensors_file import Layout
from mxspec.formats.weight_format import Activations
from mxspec.recipes.recipe import Recipe, TargetRecipe, kept_rows


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model before its weights are written.

    `borrowed` tables are in the target's weights file, at these offsets. `rows` int64[n] are those that its head keeps,
    None for all. `traces` are the raw graphs that it was exported from, for another export in other formats.
    """

    name: ModelName
    weight_format: str
    exported: ExportedGraph
    sources: Tensors
    ignored: tuple[str, ...]
    layout: Layout
    specializations: tuple[int, ...]
    activations: Activations = "int16"
    budget: BudgetEntry | None = None
    borrowed: Mapping[str, int] = field(default_factory=dict)
    traces: Traces = field(default_factory=Traces)
    rows: Ids | None = None

    @property
    def stored(self) -> list[WeightSpec]:
        """The weights in its own weights file."""
        return [spec for spec in self.exported.weights if spec.name not in self.borrowed]

    @property
    def reads_states(self) -> bool:
        """Whether it is a draft that reads the target's hidden states."""
        return self.exported.states is not None and self.exported.states.own is not None

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose inputs the graph gives as hidden states."""
        return () if self.exported.states is None or self.reads_states else self.exported.states.layers

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


def plan_model(
    name: ModelName,
    checkpoint: Checkpoint,
    wanted: TargetRecipe,
    recipe: Recipe,
    context_length: int,
    traces: Traces | None = None,
    rows: Ids | None = None,
    taps: Sequence[int] = (),
) -> ModelPlan:
    """Export the graph and find its weights in the checkpoint; its head keeps `rows` if given.

    With `taps` the graph gives the hidden states that enter these layers. Raises MxspecError.
    """
    model = checkpoint.named
    traces = Traces() if traces is None else traces
    own = own_formats(model, checkpoint)
    buffers = find_buffers(model, checkpoint.tensors)
    head_rows = None if rows is None else len(rows)
    exported = _export(checkpoint.config, model, own, wanted, recipe, context_length, buffers, traces, head_rows, taps)
    parameters = [*dict.fromkeys(source for spec in exported.weights for source in spec.sources), *buffers]
    resolved = resolve_names(model, checkpoint.tensors, parameters)
    sources = {parameter: checkpoint.tensors[tensor] for parameter, tensor in resolved.tensor_of.items()}
    if rows is not None:
        for parameter in head_parameters(model) & sources.keys():
            sources[parameter] = SelectedRows(sources[parameter], rows)
    return ModelPlan(
        name=name,
        weight_format=main_format(wanted, own),
        exported=exported,
        sources=sources,
        ignored=resolved.ignored,
        layout=plan_weights(exported.weights, sources),
        specializations=specializations(name, recipe, context_length, exported),
        activations=wanted.activations,
        rows=rows,
        traces=traces,
    )


def head_parameters(model: PreTrainedModel) -> set[str]:
    """The names of the head's weight, though it may be tied, and of its bias."""
    head = model.get_output_embeddings()
    path = next(path for path, module in model.named_modules() if module is head)
    return {f"{path}.weight", f"{path}.bias"}


def plan_without_weights(
    name: ModelName, config: PreTrainedConfig, wanted: TargetRecipe, recipe: Recipe, context_length: int
) -> ModelPlan:
    """The plan of a configuration without a checkpoint. Raises MxspecError if it cannot be exported."""
    model, rows = name_parameters(config), kept_rows(wanted)
    own = formats_by_config(model, config)
    plain = copy.deepcopy(config)
    take_layout(plain, Path(CONFIG))
    exported = _export(plain, model, own, wanted, recipe, context_length, {}, head_rows=rows)
    layout, lengths = lay_out(exported.weights), specializations(name, recipe, context_length, exported)
    return ModelPlan(name, main_format(wanted, own), exported, {}, (), layout, lengths, wanted.activations)


def _export(
    config: PreTrainedConfig,
    model: PreTrainedModel,
    own: Mapping[str, str],
    wanted: TargetRecipe,
    recipe: Recipe,
    context_length: int,
    buffers: Tensors,
    traces: Traces | None = None,
    head_rows: int | None = None,
    taps: Sequence[int] = (),
) -> ExportedGraph:
    weight_format = choose_formats(model, wanted, own)
    return export_graph(
        config,
        weight_format=weight_format,
        context_length=context_length,
        caches=recipe.caches,
        source_length=source_length(recipe, config),
        activations=wanted.activations,
        buffers=buffers,
        stored_once=choose_tables(wanted, weight_format, own) if head_rows is None else never,
        traces=traces,
        head_rows=head_rows,
        taps=taps,
    )


def specializations(name: ModelName, recipe: Recipe, context_length: int, exported: ExportedGraph) -> tuple[int, ...]:
    """Sequence lengths a model is called with: a step, the draft's catch-up or the K+1 scored rows, prefill.

    A draft that reads hidden states catches up with all that was scored.
    """
    catches_up = name == "draft" and exported.states is None
    lengths = {1, 2 if catches_up else recipe.k_max + 1, recipe.prefill_chunk}
    return tuple(sorted(length for length in lengths if length <= context_length))
