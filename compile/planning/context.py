"""Choose the number of positions of each model, and the longest source."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.architecture import context_limit
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe

# For encoder-decoders without positions, only distances: T5 was trained on texts of this length.
WITHOUT_POSITIONS = 512


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
        raise UnsupportedModelError("the target does not say how many positions it knows; set context_length")
    if most and context > most:
        raise RecipeError(
            f"context_length: got {context}, but the target knows {most} positions; expected at most {most}"
        )
    if recipe.k_max >= context:
        raise RecipeError(f"k_max: got {recipe.k_max}, expected less than the context length, {context}")
    return {name: min(context, known[name] or context) for name in configs}


def source_length(recipe: Recipe, config: PreTrainedConfig) -> int | None:
    """The most tokens of a source: the recipe's, or the encoder's limit; None for a model without an encoder."""
    if not config.is_encoder_decoder:
        return None
    most = context_limit(config)
    wanted = recipe.source_length or most or WITHOUT_POSITIONS
    return min(wanted, most or wanted)


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
