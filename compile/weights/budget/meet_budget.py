"""Meet the budget that a recipe sets for a model: measure, choose, and write down why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mxspec.compile.checkpoint.experts import router_matrices
from mxspec.compile.planning.formats import Formats, own_formats
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.budget.choose import Options, within_bytes, within_loss
from mxspec.compile.weights.budget.experts import Losses
from mxspec.compile.weights.budget.product import Product, list_products, product_entry
from mxspec.compile.weights.budget.sensitivity import Sensitivity
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.store import RoundingStore
from mxspec.compile.weights.rounding.text import CalibrationText, read_calibration
from mxspec.formats.errors import RecipeError
from mxspec.formats.manifest import BudgetEntry
from mxspec.formats.weight_format import FP16_TILES, WEIGHT_FORMATS
from mxspec.recipes.recipe import Recipe, TargetRecipe
from mxspec.runtime.text.tokenizer import load_tokenizer

SCORED_TOKENS = 8192  # on which losses are measured: a matrix has many rows, so few windows suffice
_TRIAL_SHARE = 4  # with gptq, one window in four is scored, and the others make the trial rounding


def meet_budget(
    model: Model, place: Path, require_space: Callable[[int], None], stages: Stages
) -> tuple[TargetRecipe, BudgetEntry]:
    """The model's recipe with a format for every matrix, and the manifest's account of the choice; files in `place`.

    Raises RecipeError for a budget that cannot be met, MxspecError for a bad text, a damaged checkpoint or a model
    that is not a list of decoder layers.
    """
    with stages.step(f"outline {model.name}"):
        plan = _outline(model)
    products = list_products(plan, model.wanted.choices, _fixed_formats(model))
    most = _most_bytes(products, model.wanted)
    text = _read_text(model)
    require_space(_scratch_bytes(model, plan, products, text))
    losses = _measure(model, plan, products, text, place, stages)
    options = [product.options(losses) for product in products]
    chosen = _choose(options, model.wanted, most)
    return _with_formats(model.wanted, products, chosen), _describe(model, products, options, chosen, text)


def _outline(model: Model) -> ModelPlan:
    """A plan with all products in one format that no pattern names, to find the model's products."""
    asked = {kind for _, kind in model.wanted.formats}
    uniform = next((kind for kind in model.wanted.choices if kind not in asked), model.wanted.choices[0])
    wanted = model.wanted.model_copy(update={"format": uniform})
    return plan_model(replace(model, wanted=wanted))


def _fixed_formats(model: Model) -> Callable[[str], str]:
    """The format that patterns give to a parameter, or that of routers; "" for one that is to be chosen."""
    named = model.checkpoint.named
    routers = router_matrices(named)
    if own := own_formats(named, model.checkpoint):
        raise RecipeError(
            f"budget: {next(iter(own))} and {len(own) - 1} others are MX in the checkpoint and keep their format; "
            "leave the budget out"
        )
    asked = Formats(named, model.wanted.model_copy(update={"format": ""}), own)
    return lambda parameter: FP16_TILES if parameter in routers else asked.of(parameter)


def _most_bytes(products: Sequence[Product], wanted: TargetRecipe) -> int | None:
    """The bytes that a budget of bits a weight allows; RecipeError for one that no choice can meet."""
    if wanted.budget_bits is None:
        return None
    weights = sum(product.weights for product in products)
    bounds = [[bound(product.bytes(kind) for kind in product.formats) for product in products] for bound in (min, max)]
    least, most = (8 * sum(sizes) / weights for sizes in bounds)
    if not least <= wanted.budget_bits <= most:
        raise RecipeError(
            f"budget: got {wanted.budget_bits:g} bits a weight, expected {math.ceil(least * 1e4) / 1e4:g} to "
            f"{math.floor(most * 1e4) / 1e4:g}: what the formats allowed ({', '.join(wanted.choices)}) take here"
        )
    return int(wanted.budget_bits * weights / 8)


def _read_text(model: Model) -> CalibrationText:
    tokenizer = load_tokenizer(model.checkpoint.tokenizer)
    recipe = model.recipe
    tokens = recipe.calibration_tokens if recipe.rounding == "gptq" else min(SCORED_TOKENS, recipe.calibration_tokens)
    return read_calibration(recipe.calibration_file(), tokenizer, tokens, model.context_length, recipe.seed)


def _measure(
    model: Model, plan: ModelPlan, products: Sequence[Product], text: CalibrationText, place: Path, stages: Stages
) -> Losses:
    store = RoundingStore(place / f"{model.name}-budget")
    sensitivity = Sensitivity(
        model=LayeredModel(model.config, plan.sources),
        sources=plan.sources,
        formats={name: product.formats for product in products for name in product.matrices},
        rounding=model.recipe.rounding,
        store=store,
        random=torch.Generator().manual_seed(model.recipe.seed),
        looked_up=_looked_up(plan, model.wanted),
    )
    scored = _scored_windows(text.windows, model.recipe)
    with stages.work(f"weigh {model.name}", sensitivity.work(text.windows, scored)) as advance:
        losses = sensitivity.run(text.windows, scored, advance)
    store.remove()
    return losses


def _looked_up(plan: ModelPlan, wanted: TargetRecipe) -> list[str]:
    """The head, if tokens are looked up in it in any format."""
    shared = [spec for spec in plan.exported.weights if spec.looked_up and wanted.tied == "once"]
    return [parameter for spec in shared for parameter in spec.sources]


def _scored_windows(windows: NDArray[np.int64], recipe: Recipe) -> int:
    """The number of windows on which losses are measured; a trial rounding is judged on other windows than its own."""
    count, length = windows.shape
    few = max(1, SCORED_TOKENS // int(length))
    return min(few, count // _TRIAL_SHARE if recipe.rounding == "gptq" and count >= _TRIAL_SHARE else int(count))


def _scratch_bytes(model: Model, plan: ModelPlan, products: Sequence[Product], text: CalibrationText) -> int:
    """Bytes of all layers' inputs, and of the inputs and outputs of one layer's products; the head's are the widest.

    Experts take less than one of them would: their layer's inputs, and those of a trial rounding, and what they give.
    """
    experts = plan.exported.experts
    counts = {} if experts is None else dict.fromkeys(experts.tensors, experts.count)
    matrices = [(n // counts.get(name, 1), k) for product in products for name, (n, k) in product.matrices.items()]
    hidden = int(model.config.hidden_size)
    width = max(n for n, _ in matrices) + sum(n + k for n, k in matrices) // plan.exported.layers
    streams = plan.exported.layers + (1 if experts is None else 2)
    return 4 * (text.tokens * hidden * streams + min(text.tokens, SCORED_TOKENS) * width)


def _choose(options: Sequence[Options], wanted: TargetRecipe, most: int | None) -> list[str]:
    if most is not None:
        chosen = within_bytes(options, most)
        assert chosen is not None, "the bounds of the budget were checked"
        return chosen
    assert wanted.max_ratio is not None
    if (chosen := within_loss(options, math.log(wanted.max_ratio))) is None:
        least = math.exp(sum(min(option.loss for option in product.values()) for product in options))
        raise RecipeError(
            f"max_ratio: got {wanted.max_ratio:g}, expected at least {least:.6f}, predicted of the best formats "
            f"allowed ({', '.join(wanted.choices)}); allow a larger one, or fp16"
        )
    return chosen


def _with_formats(wanted: TargetRecipe, products: Sequence[Product], chosen: Sequence[str]) -> TargetRecipe:
    """The recipe with a pattern for every chosen format, after the user's; `format` is that of most weights."""
    weights = dict.fromkeys(WEIGHT_FORMATS, 0)
    rules = []
    for product, kind in zip(products, chosen, strict=True):
        weights[kind] += product.weights
        rules += [] if product.fixed else [(parameter, kind) for parameter in product.matrices]
    most = max(weights, key=lambda kind: weights[kind])
    return wanted.model_copy(update={"format": most, "formats": (*wanted.formats, *rules)})


def _describe(
    model: Model,
    products: Sequence[Product],
    options: Sequence[Options],
    chosen: Sequence[str],
    text: CalibrationText,
) -> BudgetEntry:
    entries = [product_entry(*each) for each in zip(products, options, chosen, strict=True)]
    assert text.sha256 is not None, "the text of a budget is a file"
    bits = 8 * sum(entry.bytes for entry in entries) / sum(product.weights for product in products)
    return BudgetEntry(
        budget_bits=model.wanted.budget_bits,
        max_ratio=model.wanted.max_ratio,
        allowed_formats=model.wanted.choices,
        reached_bits=bits,
        predicted_ratio=math.exp(sum(entry.loss for entry in entries)),
        text_sha256=text.sha256,
        tokens=_scored_windows(text.windows, model.recipe) * text.windows.shape[1],
        seed=model.recipe.seed,
        products=tuple(sorted(entries, key=lambda entry: -entry.loss_a_byte)),
    )
