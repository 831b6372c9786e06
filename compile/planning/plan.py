"""What will be compiled: a model's exported graph, its checkpoint tensors, and the layout of its weights file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.buffers import find_buffers
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.mx_tensor import MxTensor, Source
from mxspec.compile.checkpoint.names import name_parameters, rename, resolve_names, tied_names
from mxspec.compile.graph.exported_graph import ExportedGraph, WeightSpec
from mxspec.compile.passes.embeddings import StoredOnce
from mxspec.compile.planning.context import source_length
from mxspec.compile.planning.export_graph import export_graph
from mxspec.compile.planning.layout import lay_out, plan_weights
from mxspec.formats.errors import CheckpointError, RecipeError, did_you_mean
from mxspec.formats.manifest import BudgetEntry, ModelName
from mxspec.formats.safetensors_file import Layout
from mxspec.formats.weight_format import FP16_TILES, Activations
from mxspec.recipes.recipe import Recipe, TargetRecipe


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model before its weights are written.

    `borrowed` tables lie in the target's weights file, at these offsets.
    """

    name: ModelName
    weight_format: str
    exported: ExportedGraph
    sources: Mapping[str, Source]
    ignored: tuple[str, ...]
    layout: Layout
    specializations: tuple[int, ...]
    activations: Activations = "int16"
    budget: BudgetEntry | None = None
    borrowed: Mapping[str, int] = field(default_factory=dict)

    @property
    def stored(self) -> list[WeightSpec]:
        """What its own weights file holds."""
        return [spec for spec in self.exported.weights if spec.name not in self.borrowed]

    @property
    def read_bytes(self) -> int:
        """Bytes of the checkpoint that packing will read; a tied head that is stored twice is read twice."""
        return sum(self.sources[source].bytes for spec in self.exported.weights for source in spec.sources)

    @property
    def shares_table(self) -> bool:
        """Whether embedding and head are stored once."""
        return any(spec.looked_up for spec in self.exported.weights)


def plan_model(
    name: ModelName, checkpoint: Checkpoint, wanted: TargetRecipe, recipe: Recipe, context_length: int
) -> ModelPlan:
    """Export the graph and find its weights in the checkpoint. Raises MxspecError for what cannot be."""
    model = checkpoint.named
    own = own_formats(model, checkpoint)
    buffers = find_buffers(model, checkpoint.tensors)
    exported = _export(checkpoint.config, model, own, wanted, recipe, context_length, buffers)
    parameters = [*dict.fromkeys(source for spec in exported.weights for source in spec.sources), *buffers]
    resolved = resolve_names(model, checkpoint.tensors, parameters)
    sources = {parameter: checkpoint.tensors[tensor] for parameter, tensor in resolved.tensor_of.items()}
    return ModelPlan(
        name=name,
        weight_format=main_format(wanted, own),
        exported=exported,
        sources=sources,
        ignored=resolved.ignored,
        layout=plan_weights(exported.weights, sources),
        specializations=specializations(name, recipe, context_length),
        activations=wanted.activations,
    )


def plan_without_weights(
    name: ModelName, config: PreTrainedConfig, wanted: TargetRecipe, recipe: Recipe, context_length: int
) -> ModelPlan:
    """The plan of a configuration without a checkpoint. Raises MxspecError for what cannot be exported."""
    exported = _export(config, name_parameters(config), {}, wanted, recipe, context_length, {})
    layout, lengths = lay_out(exported.weights), specializations(name, recipe, context_length)
    return ModelPlan(name, wanted.format, exported, {}, (), layout, lengths, wanted.activations)


def _export(
    config: PreTrainedConfig,
    model: PreTrainedModel,
    own: Mapping[str, str],
    wanted: TargetRecipe,
    recipe: Recipe,
    context_length: int,
    buffers: Mapping[str, Source],
) -> ExportedGraph:
    weight_format = choose_formats(model, wanted, own)
    return export_graph(
        config,
        weight_format=weight_format,
        context_length=context_length,
        cache_dtype=recipe.cache_dtype,
        source_length=source_length(recipe, config),
        activations=wanted.activations,
        buffers=buffers,
        stored_once=choose_tables(wanted, weight_format, own),
    )


def specializations(name: ModelName, recipe: Recipe, context_length: int) -> tuple[int, ...]:
    """Sequence lengths a model is called with: a step, the draft's catch-up or the K+1 scored rows, prefill."""
    lengths = {1, 2 if name == "draft" else recipe.k_max + 1, recipe.prefill_chunk}
    return tuple(sorted(length for length in lengths if length <= context_length))


def own_formats(model: PreTrainedModel, checkpoint: Checkpoint) -> dict[str, str]:
    """The formats of the parameters that are MX in the checkpoint. Raises CheckpointError where tied ones differ."""
    found, _ = rename(model, list(checkpoint.tensors))
    own: dict[str, str] = {}
    for parameter, names in tied_names(model).items():
        sources = [checkpoint.tensors[found[name]] for name in sorted(names) if name in found]
        formats = {source.format if isinstance(source, MxTensor) else None for source in sources}
        if len(formats) > 1:
            held = " and ".join(repr(source.name) for source in sources)
            raise CheckpointError(f"{held} are one parameter by config.json, but they are not stored in one format")
        if (format_name := next(iter(formats), None)) is not None:
            own[parameter] = format_name
    return own


def main_format(wanted: TargetRecipe, own: Mapping[str, str]) -> str:
    """The model's format in a word: what was asked for, or else that of most matrices which are MX already."""
    if not own or _asked_format(wanted) is not None:
        return wanted.format
    return Counter(own.values()).most_common(1)[0][0]


def _asked_format(wanted: TargetRecipe) -> str | None:
    """The model's format if it was asked for, and not merely the default."""
    return wanted.format if "format" in wanted.model_fields_set else None


def choose_formats(model: PreTrainedModel, wanted: TargetRecipe, own: Mapping[str, str]) -> Callable[[str], str]:
    """The format of a matrix by its parameter name: that of its codes in the checkpoint if it has any, or the recipe's.

    Raises RecipeError for a pattern that names no matrix, and, when a matrix's format is asked for, where the recipe
    asks to round codes a second time.
    """
    names = tied_names(model)
    matrices = sorted(name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.ndim == 2)
    rules = [(pattern, FP16_TILES) for pattern in wanted.keep_fp16] + list(wanted.formats)
    for index, (pattern, _) in enumerate(rules):
        if not any(fnmatchcase(name, pattern) for name in matrices):
            key = "keep_fp16" if index < len(wanted.keep_fp16) else "formats"
            raise RecipeError(f"{key}: no matrix is named {pattern!r}{did_you_mean(pattern, matrices)}")

    def weight_format(parameter: str) -> str:
        matching = (kind for pattern, kind in rules if any(fnmatchcase(name, pattern) for name in names[parameter]))
        asked, held = next(matching, _asked_format(wanted)), own.get(parameter)
        if asked is not None and held not in (None, asked) and asked != FP16_TILES:
            raise RecipeError(
                f"{parameter} is {held} in the checkpoint, and {asked} would round it a second time: leave its format "
                f"out of the recipe, or give {held} or fp16"
            )
        return asked or held or wanted.format

    return weight_format


def choose_tables(wanted: TargetRecipe, weight_format: Callable[[str], str], own: Mapping[str, str]) -> StoredOnce:
    """Whether a head that is the embedding, too, is stored once: as the recipe says, or else where nothing is lost."""

    def stored_once(parameter: str) -> bool:
        kind = weight_format(parameter)
        exact = kind in (FP16_TILES, own.get(parameter))
        return exact if wanted.tied is None else wanted.tied == "once"

    return stored_once
