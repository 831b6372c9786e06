"""How many positions each model of a bundle is compiled for."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.config import context_limit
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe


def choose_contexts(recipe: Recipe, configs: Mapping[ModelName, PreTrainedConfig]) -> dict[ModelName, int]:
    """The recipe's context length, or all positions that the target knows; of the draft as many of these as it knows.

    Raises RecipeError where the target knows fewer than the recipe wants, or a round would not fit, and
    UnsupportedModelError where nobody says.
    """
    known = {name: context_limit(config) for name, config in configs.items()}
    most = known["target"]
    context = recipe.context_length or most
    if not context:
        raise UnsupportedModelError("the target does not say how many positions it knows; set context_length")
    if most and context > most:
        raise RecipeError(
            f"context_length: got {context}, but the target knows {most} positions; expected at most {most}"
        )
    if recipe.k_max >= context:
        raise RecipeError(f"k_max: got {recipe.k_max}, expected less than the context length, {context}")
    return {name: min(context, known[name] or context) for name in configs}
