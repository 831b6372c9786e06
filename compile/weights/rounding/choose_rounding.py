"""What `--rounding auto` becomes: calibrated rounding where it can be done in time, otherwise rounding to nearest."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from mxspec.compile.planning.model import Model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.model import rounding_work
from mxspec.compile.weights.rounding.round_model import mx_formats
from mxspec.compile.weights.rounding.speed import seconds_of
from mxspec.formats.errors import UnsupportedModelError
from mxspec.recipes.recipe import Recipe, Rounding


def choose_rounding(models: Collection[Model], stages: Stages) -> None:
    """Set the way in which planned models are rounded: the recipe's, in place of `auto` the best in its minutes."""
    recipe = next(iter(models)).recipe
    chosen = _in_time(recipe, models, stages) if recipe.rounding == "auto" else recipe.rounding
    for model in models:
        model.rounding = chosen


def _in_time(recipe: Recipe, models: Collection[Model], stages: Stages) -> Rounding:
    """A line says which way was chosen, how long it takes, or why it is not."""
    found = [(model, formats) for model in models if model.rows is None and (formats := mx_formats(model.plan))]
    if not found or not recipe.rounding_minutes:
        return "nearest"
    if (reason := _obstacle(models)) is not None:
        stages.note(f"rounding to nearest: {reason}")
        return "nearest"
    try:
        work = sum(_work(model, formats) for model, formats in found)
    except UnsupportedModelError as error:
        stages.note(f"rounding to nearest: {error}")
        return "nearest"
    minutes = seconds_of(work) / 60
    if minutes > recipe.rounding_minutes:
        stages.note(
            f"rounding to nearest: rounding with calibration takes about {math.ceil(minutes)} minutes here, more than "
            f"--rounding-minutes {recipe.rounding_minutes:g}"
        )
        return "nearest"
    text = "of the --calibrate text" if recipe.calibrate else "that the model writes"
    stages.note(
        f"rounding with calibration on {recipe.calibration_tokens:,} tokens {text}: about {math.ceil(minutes)} "
        f"{'minute' if minutes <= 1 else 'minutes'} (--rounding nearest takes none, and loses more)"
    )
    return "gptq"


def _obstacle(models: Collection[Model]) -> str | None:
    if any(model.checkpoint.config.is_encoder_decoder for model in models):
        return "calibration does not support models with an encoder"
    if any(model.budget is not None for model in models):
        return "the budget's formats are chosen by the errors of rounding to nearest (--rounding gptq counts its own)"
    return None


def _work(model: Model, formats: Mapping[str, str]) -> int:
    """About how many multiplications rounding takes, and writing its text."""
    plan, recipe = model.plan, model.recipe
    tokens = recipe.calibration_tokens
    writing = 0 if recipe.calibrate else tokens * plan.weight_count
    return writing + rounding_work(LayeredModel(model.checkpoint.config, plan.sources), plan.sources, formats, tokens)
