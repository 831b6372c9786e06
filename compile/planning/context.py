"""Choose the number of positions of each model, and the longest source."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.settings.architecture import context_limit, head_size, rope_switch
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe

# For encoder-decoders without positions, only distances: T5 was trained on texts of this length.
WITHOUT_POSITIONS = 512
MOST_TABLE_BYTES = 1 << 29  # of cosines and sines: a million positions of heads of 128; making them takes 4 times that


def choose_contexts(recipe: Recipe, configs: Mapping[ModelName, PreTrainedConfig]) -> dict[ModelName, int]:
    """The recipe's context length, or all positions that the target knows; a draft may know fewer.

    Raises RecipeError if the target knows fewer than the recipe asks for, or a round would not fit, and
    UnsupportedModelError if neither gives a number.
    """
    known = {name: context_limit(config) for name, config in configs.items()}
    most, target = known["target"], configs["target"]
    _check_sources(recipe, target)
    context = recipe.context_length or most or (WITHOUT_POSITIONS if target.is_encoder_decoder else None)
    if not context:
        raise UnsupportedModelError(
            "the target's config.json does not give its number of positions; set context_length"
        )
    if most and context > most:
        scaled = getattr(target, "rope_parameters", None)
        more = f"; for more, its config.json needs rope_scaling and max_position_embeddings {context}" if scaled else ""
        raise RecipeError(
            f"context_length: got {context}, but the target knows {most} positions; expected at most {most}{more}"
        )
    _check_tables(target, context)
    if recipe.k_max >= context:
        raise RecipeError(f"k_max: got {recipe.k_max}, expected less than the context length, {context}")
    return {name: min(context, known[name] or context) for name in configs}


def rope_warning(name: ModelName, config: PreTrainedConfig, context: int) -> str | None:
    """What differs from transformers in a short text, where the compiled context chooses the rotary frequencies."""
    most = rope_switch(config)
    if most is None or context <= most:
        return None
    return (
        f"the {name} has other rotary frequencies for texts of up to {most} tokens than for longer ones (longrope). "
        f"Compiled for {context} tokens, it has those of long texts for all, so a short text differs from "
        f"transformers'. If yours are short, compile with --context-length {most}"
    )


def source_length(recipe: Recipe, config: PreTrainedConfig) -> int | None:
    """The most tokens of a source: the recipe's, or the encoder's limit; None for a model without an encoder."""
    if not config.is_encoder_decoder:
        return None
    most = context_limit(config)
    wanted = recipe.source_length or most or WITHOUT_POSITIONS
    return min(wanted, most or wanted)


def _check_tables(config: PreTrainedConfig, context: int) -> None:
    """Raise RecipeError where tables of rotary embedding would fill the memory."""
    if not getattr(config, "rope_parameters", None):
        return
    row = 4 * head_size(config)  # float32, half of them cosines
    if context * row > MOST_TABLE_BYTES:
        raise RecipeError(
            f"max_position_embeddings: tables of cosines and sines for {context} positions take "
            f"{context * row / 1e9:,.1f} GB, expected at most {MOST_TABLE_BYTES / 1e9:.1f} GB: compile for fewer, with "
            f"--context-length {MOST_TABLE_BYTES // row} or less"
        )


def _check_sources(recipe: Recipe, config: PreTrainedConfig) -> None:
    if recipe.source_length is None:
        return
    most = context_limit(config)
    if not config.is_encoder_decoder:
        raise RecipeError(f"source_length: got {recipe.source_length}, but the target has no encoder")
    if most and recipe.source_length > most:
        raise RecipeError(
            f"source_length: got {recipe.source_length}, but the target's encoder knows {most} positions; expected at "
            f"most {most}"
        )
