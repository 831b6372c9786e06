"""What `--rounding auto` becomes: calibrated rounding on as many tokens as a recipe's minutes allow."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from mxspec.compile.planning.model import Model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.model import rounding_work
from mxspec.compile.weights.rounding.round_model import mx_formats
from mxspec.compile.weights.rounding.speed import FEWEST_TOKENS, affordable_tokens, minutes_of, seconds_of
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.recipes.recipe import Recipe


def choose_rounding(models: Collection[Model], stages: Stages) -> None:
    """Set how planned models are rounded, and on how many tokens; for `auto`, by the minutes of the recipe.

    The choice depends on the recipe and the models alone, not on the machine. Raises RecipeError for a text to
    calibrate on that cannot be used.
    """
    recipe = next(iter(models)).recipe
    tokens = _affordable(recipe, models, stages) if recipe.rounding == "auto" else recipe.calibration_tokens
    for model in models:
        model.rounding = ("gptq" if tokens else "nearest") if recipe.rounding == "auto" else recipe.rounding
        model.calibration_tokens = tokens


def _affordable(recipe: Recipe, models: Collection[Model], stages: Stages) -> int:
    """The tokens to calibrate on, 0 for rounding to nearest; a line says which, and how long it takes."""
    found = [(model, formats) for model in models if model.rows is None and (formats := mx_formats(model.plan))]
    if not found or (not recipe.rounding_minutes and recipe.calibrate is None):
        return 0
    if any(model.budget is not None for model in models):
        reason = "the budget's formats are chosen by the errors of rounding to nearest (--rounding gptq counts its own)"
        stages.note(f"rounding to nearest: {reason}")
        return 0
    try:
        if any(model.checkpoint.config.is_encoder_decoder for model in models):
            raise UnsupportedModelError("calibration does not support models with an encoder")
        layered = {model.name: LayeredModel(model.checkpoint.config, model.plan.sources) for model, _ in found}
    except UnsupportedModelError as error:
        if recipe.calibrate is not None:
            raise RecipeError(f"calibrate: {error}; leave --calibrate out, or say --rounding nearest") from None
        stages.note(f"rounding to nearest: {error}")
        return 0

    def work(tokens: int) -> int:
        return sum(_work(model, formats, layered[model.name], tokens) for model, formats in found)

    tokens = affordable_tokens(recipe, work)
    if not tokens and recipe.calibrate is None:
        least = math.ceil(minutes_of(work(FEWEST_TOKENS)))
        stages.note(
            f"rounding to nearest: calibration on {FEWEST_TOKENS:,} tokens needs --rounding-minutes {least}, more than "
            f"{recipe.rounding_minutes:g}"
        )
        return 0
    tokens = tokens or min(FEWEST_TOKENS, recipe.calibration_tokens)
    text = "of the --calibrate text" if recipe.calibrate else "that the model writes"
    minutes = math.ceil(seconds_of(work(tokens)) / 60)
    stages.note(
        f"rounding with calibration on {tokens:,} tokens {text}: about {minutes} "
        f"{'minute' if minutes == 1 else 'minutes'} on a machine as busy as now (--rounding nearest takes none, and "
        "loses more)"
    )
    return tokens


def _work(model: Model, formats: Mapping[str, str], layered: LayeredModel, tokens: int) -> int:
    """The multiplications of rounding, about, and of writing its text."""
    writing = 0 if model.recipe.calibrate else tokens * model.plan.weight_count
    return writing + rounding_work(layered, model.plan.sources, formats, tokens)
