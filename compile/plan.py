"""What will be compiled: a model's exported graph, its checkpoint tensors, and the layout of its weights file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from transformers import PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from mxspec.compile.checkpoint.config import load_config
from mxspec.compile.checkpoint.names import name_parameters, resolve_names, tied_names
from mxspec.compile.export import export_graph
from mxspec.compile.graph import ExportedGraph
from mxspec.compile.weights.pack import plan_weights
from mxspec.formats.errors import RecipeError, did_you_mean
from mxspec.formats.manifest import BudgetEntry, ModelName
from mxspec.formats.safetensors_file import Layout
from mxspec.formats.weight_format import FP16_TILES, Activations
from mxspec.recipes.recipe import Recipe, TargetRecipe


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model before its weights are written."""

    name: ModelName
    weight_format: str
    exported: ExportedGraph
    sources: Mapping[str, CheckpointTensor]
    ignored: tuple[str, ...]
    layout: Layout
    specializations: tuple[int, ...]
    activations: Activations = "int16"
    budget: BudgetEntry | None = None

    @property
    def read_bytes(self) -> int:
        """Bytes of the checkpoint that packing will read; a tied head is read twice."""
        return sum(self.sources[source].bytes for spec in self.exported.weights for source in spec.sources)


def plan_model(
    name: ModelName, folder: Path, wanted: TargetRecipe, recipe: Recipe, context_length: int, files: ExitStack
) -> ModelPlan:
    """Export the graph and find its weights; `files` keeps the shards open. Raises MxspecError for what cannot be."""
    model = name_parameters(load_config(folder))
    exported = export_graph(
        folder,
        weight_format=choose_formats(model, wanted),
        context_length=context_length,
        cache_dtype=recipe.cache_dtype,
        activations=wanted.activations,
    )
    checkpoint = files.enter_context(Checkpoint(folder))
    parameters = dict.fromkeys(source for spec in exported.weights for source in spec.sources)
    resolved = resolve_names(model, checkpoint.tensors, parameters)
    sources = {parameter: checkpoint.tensors[tensor] for parameter, tensor in resolved.tensor_of.items()}
    return ModelPlan(
        name=name,
        weight_format=wanted.format,
        exported=exported,
        sources=sources,
        ignored=resolved.ignored,
        layout=plan_weights(exported.weights, sources),
        specializations=specializations(name, recipe, context_length),
        activations=wanted.activations,
    )


def specializations(name: ModelName, recipe: Recipe, context_length: int) -> tuple[int, ...]:
    """Sequence lengths a model is called with: a step, the draft's catch-up or the K+1 scored rows, prefill."""
    lengths = {1, 2 if name == "draft" else recipe.k_max + 1, recipe.prefill_chunk}
    return tuple(sorted(length for length in lengths if length <= context_length))


def choose_formats(model: PreTrainedModel, wanted: TargetRecipe) -> Callable[[str], str]:
    """The format of a matrix by its parameter name; RecipeError for a pattern that names no matrix."""
    names = tied_names(model)
    matrices = sorted(name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.ndim == 2)
    rules = [(pattern, FP16_TILES) for pattern in wanted.keep_fp16] + list(wanted.formats)
    for index, (pattern, _) in enumerate(rules):
        if not any(fnmatchcase(name, pattern) for name in matrices):
            key = "keep_fp16" if index < len(wanted.keep_fp16) else "formats"
            raise RecipeError(f"{key}: no matrix is named {pattern!r}{did_you_mean(pattern, matrices)}")

    def weight_format(parameter: str) -> str:
        matching = (kind for pattern, kind in rules if any(fnmatchcase(name, pattern) for name in names[parameter]))
        return next(matching, wanted.format)

    return weight_format
