"""What `--rounding auto` becomes: calibrated rounding where it can be done in time, otherwise rounding to nearest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.plan import ModelPlan
from mxspec.compile.progress import Stages
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.model import rounding_work
from mxspec.compile.weights.rounding.round_model import mx_formats
from mxspec.compile.weights.rounding.speed import seconds_of
from mxspec.formats.errors import UnsupportedModelError
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe


def choose_rounding(
    recipe: Recipe, plans: Sequence[ModelPlan], checkpoints: Mapping[ModelName, Checkpoint], stages: Stages
) -> Recipe:
    """The recipe with `auto` replaced; a line says which way was chosen, how long it takes, or why it is not."""
    if recipe.rounding != "auto":
        return recipe
    found = {plan.name: formats for plan in plans if plan.rows is None and (formats := mx_formats(plan))}
    if not found or not recipe.rounding_minutes:
        return recipe.with_changes(rounding="nearest")
    if (reason := _obstacle(recipe, checkpoints)) is not None:
        stages.note(f"rounding to nearest: {reason}")
        return recipe.with_changes(rounding="nearest")
    rounded = [plan for plan in plans if plan.name in found]
    try:
        work = sum(_work(plan, checkpoints[plan.name], found[plan.name], recipe) for plan in rounded)
    except UnsupportedModelError as error:
        stages.note(f"rounding to nearest: {error}")
        return recipe.with_changes(rounding="nearest")
    minutes = seconds_of(work) / 60
    if minutes > recipe.rounding_minutes:
        stages.note(
            f"rounding to nearest: rounding with calibration takes about {math.ceil(minutes)} minutes here, more than "
            f"--rounding-minutes {recipe.rounding_minutes:g}"
        )
        return recipe.with_changes(rounding="nearest")
    text = "of the --calibrate text" if recipe.calibrate else "that the model writes"
    stages.note(
        f"rounding with calibration on {recipe.calibration_tokens:,} tokens {text}: about {math.ceil(minutes)} "
        f"{'minute' if minutes <= 1 else 'minutes'} (--rounding nearest takes none, and loses more)"
    )
    return recipe.with_changes(rounding="gptq")


def _obstacle(recipe: Recipe, checkpoints: Mapping[ModelName, Checkpoint]) -> str | None:
    if checkpoints["target"].config.is_encoder_decoder:
        return "calibration does not support models with an encoder"
    if any(model is not None and model.has_budget for model in (recipe.target, recipe.draft)):
        return "the budget's formats are chosen by the errors of rounding to nearest (--rounding gptq counts its own)"
    return None


def _work(plan: ModelPlan, checkpoint: Checkpoint, formats: Mapping[str, str], recipe: Recipe) -> int:
    """About how many multiplications rounding takes, and writing its text."""
    tokens = recipe.calibration_tokens
    writing = 0 if recipe.calibrate else tokens * plan.weight_count
    return writing + rounding_work(LayeredModel(checkpoint.config, plan.sources), plan.sources, formats, tokens)
