"""The plan of a model: its exported graph, its checkpoint tensors, and the layout of its weights file."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.buffers import find_buffers
from mxspec.compile.checkpoint.names import name_parameters, resolve_names
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.settings.mx_config import take_layout
from mxspec.compile.checkpoint.tensors.derived import SelectedRows
from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.passes.embeddings import never
from mxspec.compile.planning.context import source_length
from mxspec.compile.planning.export_graph import export_graph
from mxspec.compile.planning.formats import choose_formats, choose_tables, formats_by_config, main_format, own_formats
from mxspec.compile.planning.layout import lay_out, plan_weights
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe, TargetRecipe, kept_rows


def plan_model(model: Model) -> ModelPlan:
    """Export the graph of a model with a context, and find its weights in the checkpoint. Raises MxspecError."""
    checkpoint, wanted, rows = model.checkpoint, model.wanted, model.rows
    named = checkpoint.named
    own = own_formats(named, checkpoint)
    buffers, weight_format = find_buffers(named, checkpoint.tensors), choose_formats(named, wanted, own)
    exported = export_graph(
        checkpoint.config,
        weight_format=weight_format,
        context_length=model.context_length,
        caches=model.caches,
        source_length=model.source_length,
        activations=wanted.activations,
        buffers=buffers,
        stored_once=choose_tables(wanted, weight_format, own) if rows is None else never,
        traces=model.traces,
        head_rows=None if rows is None else len(rows),
        hidden_state_outputs=model.hidden_state_outputs,
    )
    parameters = [*dict.fromkeys(source for spec in exported.weights for source in spec.sources), *buffers]
    resolved = resolve_names(named, checkpoint.tensors, parameters)
    sources = {parameter: checkpoint.tensors[tensor] for parameter, tensor in resolved.tensor_of.items()}
    if rows is not None:
        for parameter in head_parameters(named) & sources.keys():
            sources[parameter] = SelectedRows(sources[parameter], rows)
    return ModelPlan(
        name=model.name,
        weight_format=main_format(wanted, own),
        exported=exported,
        sources=sources,
        ignored=resolved.ignored,
        layout=plan_weights(exported.weights, sources),
        specializations=specializations(model.name, model.recipe, exported),
        activations=wanted.activations,
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
    named, rows, plain = name_parameters(config), kept_rows(wanted), copy.deepcopy(config)
    own = formats_by_config(named, config)
    take_layout(plain, Path(CONFIG))
    weight_format = choose_formats(named, wanted, own)
    exported = export_graph(
        plain,
        weight_format=weight_format,
        context_length=context_length,
        caches=recipe.caches,
        source_length=source_length(recipe, plain),
        activations=wanted.activations,
        stored_once=choose_tables(wanted, weight_format, own) if rows is None else never,
        head_rows=rows,
    )
    layout, lengths = lay_out(exported.weights), specializations(name, recipe, exported)
    return ModelPlan(name, main_format(wanted, own), exported, {}, (), layout, lengths, wanted.activations)


def specializations(name: ModelName, recipe: Recipe, exported: ExportedGraph) -> tuple[int, ...]:
    """Sequence lengths a model is called with: a step, the draft's catch-up or the K+1 scored rows, prefill.

    A draft that reads hidden states catches up with all that was scored.
    """
    catches_up = name == "draft" and exported.states is None
    lengths = {1, 2 if catches_up else recipe.k_max + 1, recipe.prefill_chunk}
    return tuple(sorted(length for length in lengths if length <= exported.context_length))
