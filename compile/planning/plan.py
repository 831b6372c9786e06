"""The plan of a model: its exported graph, its checkpoint tensors, and the layout of its weights file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.buffers import find_buffers
from mxspec.compile.checkpoint.names import name_parameters, resolve_names
from mxspec.compile.checkpoint.tensors.derived import SelectedRows
from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.planning.export_graph import export_graph
from mxspec.compile.planning.formats import Formats, formats_by_config, own_formats
from mxspec.compile.planning.layout import lay_out
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.recipes.recipe import kept_rows


def plan_model(model: Model) -> ModelPlan:
    """Export the graph of a model with a context, and find its weights in the checkpoint. Raises MxspecError."""
    checkpoint = model.checkpoint
    named = checkpoint.named
    formats = Formats(named, model.wanted, own_formats(named, checkpoint))
    buffers = find_buffers(named, checkpoint.tensors)
    exported = export_graph(model, formats, buffers)
    parameters = [*dict.fromkeys(source for spec in exported.weights for source in spec.sources), *buffers]
    resolved = resolve_names(named, checkpoint.tensors, parameters)
    sources: Tensors = {parameter: checkpoint.tensors[tensor] for parameter, tensor in resolved.tensor_of.items()}
    if model.rows is not None:
        of_head = head_parameters(named)
        sources = {name: SelectedRows(t, model.rows) if name in of_head else t for name, t in sources.items()}
    layout, lengths = lay_out(exported.weights), specializations(model, exported)
    return ModelPlan(
        model.name, formats.main, exported, sources, resolved.ignored, layout, lengths, model.wanted.activations
    )


def plan_without_weights(model: Model) -> ModelPlan:
    """The plan of a configuration without a checkpoint. Raises MxspecError if it cannot be exported."""
    named = name_parameters(model.config)
    formats = Formats(named, model.wanted, formats_by_config(named, model.config))
    if (rows := kept_rows(model.wanted)) is not None:
        model = replace(model, rows=np.arange(rows))  # of some tokens
    exported = export_graph(model, formats)
    layout, lengths = lay_out(exported.weights), specializations(model, exported)
    return ModelPlan(model.name, formats.main, exported, {}, (), layout, lengths, model.wanted.activations)


def head_parameters(model: PreTrainedModel) -> set[str]:
    """The names of the head's weight, though it may be tied, and of its bias."""
    head = model.get_output_embeddings()
    path = next(path for path, module in model.named_modules() if module is head)
    return {f"{path}.weight", f"{path}.bias"}


def specializations(model: Model, exported: ExportedGraph) -> tuple[int, ...]:
    """Sequence lengths a model is called with: a step, the draft's catch-up or the K+1 scored rows, prefill.

    A draft that reads hidden states catches up with all that was scored.
    """
    catches_up = model.name == "draft" and exported.states is None
    lengths = {1, 2 if catches_up else model.recipe.k_max + 1, model.recipe.prefill_chunk}
    return tuple(sorted(length for length in lengths if length <= exported.context_length))
