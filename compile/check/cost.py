"""What packing costs a model in accuracy, measured on text that it writes itself.

On text that p writes, the mean loss of q exceeds that of p by KL(p || q), and the divergence has far less noise than
the losses. So exp(mean KL) is the ratio of perplexities on text like the model's own. Here p is the checkpoint in
float32, run a layer at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mxspec.compile.check.blurs import divergences
from mxspec.compile.check.readings import Logits
from mxspec.compile.checkpoint.tensors.tensor import Tensor, as_float32
from mxspec.compile.planning.model import Model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.grid import Grid, round_with, rule_exponents
from mxspec.compile.weights.rounding.round_model import mx_formats
from mxspec.compile.weights.rounding.speed import minutes_of
from mxspec.formats.errors import CheckFailed, RecipeError, UnsupportedModelError
from mxspec.formats.manifest import CostEntry
from mxspec.formats.weight_format import BLOCK
from mxspec.recipes.recipe import less_loss
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import AT_ONCE, open_writer, text_length, write_texts
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.text.tokenizer import load_tokenizer

SHARE = 0.2  # of the minutes for rounding that measuring may take
OTHER_SEED = 1  # added to the recipe's, which the calibration text has
SAMPLED_ROWS = 32  # of a matrix, to compare formats
E3M2, E2M3 = "mxfp6_e3m2", "mxfp6_e2m3"


def measure_cost(model: Model, folder: Path, stages: Stages) -> CostEntry | None:
    """Have a written model of the bundle in `folder` write text, and compare its logits with the checkpoint's.

    None for a model that rounds no matrix, has an encoder, or would take more than a fifth of the recipe's
    `rounding_minutes`. Raises CheckFailed if it loses more than the recipe's `max_loss`, RecipeError if a loss that
    has a limit cannot be measured.
    """
    plan, checkpoint, entry, recipe = model.plan, model.checkpoint, model.entry, model.recipe
    formats = mx_formats(plan)
    wanted = recipe.max_loss is not None
    if not formats or not (recipe.rounding_minutes or wanted):
        return None
    length = text_length(entry.context_length)
    minutes = minutes_of(2 * AT_ONCE * length * plan.weight_count)
    if minutes > SHARE * recipe.rounding_minutes and not wanted:
        stages.note(
            f"the cost in accuracy is not measured: it needs --rounding-minutes {math.ceil(minutes / SHARE)}; "
            "speccheck accuracy measures it"
        )
        return None
    try:
        if entry.encoder is not None:
            raise UnsupportedModelError("the loss of a model with an encoder is not measured")
        layered = LayeredModel(checkpoint.config, plan.sources)
    except UnsupportedModelError as unmeasured:
        if wanted:
            raise RecipeError(f"max_loss: {unmeasured}") from None
        return None
    with stages.step("measure the cost"):
        session = open_writer(folder, entry, model.known, AT_ONCE)
        openings = openings_of(checkpoint.folder, load_tokenizer(checkpoint.tokenizer))
        windows = write_texts(session, openings, AT_ONCE, length, recipe.seed + OTHER_SEED, lambda count: None)
        found = _divergence(session, layered, windows)
        if recipe.max_loss is not None and 100 * math.expm1(found) > recipe.max_loss:
            raise CheckFailed(
                f"max_loss: the target loses {100 * math.expm1(found):.2f} % of its perplexity, expected at most "
                f"{recipe.max_loss:g}: {less_loss(entry.format, model.rounding)}"
            )
        error = _compare_errors([plan.sources[name] for name, kind in formats.items() if kind == E3M2])
    return CostEntry(tokens=windows.size, divergence=found, e2m3_error=error)


def _divergence(session: Session, model: LayeredModel, windows: NDArray[np.int64]) -> float:
    """The mean divergence over all positions of the windows."""
    means = []
    for window, exact in zip(windows, _exact_logits(model, windows), strict=True):
        own = np.concatenate(list(Reader(session).score(window.tolist())))
        means.append(divergences(exact[:, : own.shape[1]], own).mean())
    return max(0.0, float(np.mean(means)))


def _exact_logits(model: LayeredModel, windows: NDArray[np.int64]) -> Iterator[Logits]:
    """The checkpoint's logits float32[length, vocab] of each window."""
    hidden = torch.cat(list(model.embed(windows)))
    for index in range(len(model.layers)):
        with model.loaded(index):
            hidden = torch.cat([model.run(index, window[None]) for window in hidden])
    with model.loaded(len(model.layers)):
        for window in hidden:
            yield model.trace(len(model.layers), window[None], lambda name, read, made: None)[0].numpy()


def _compare_errors(sources: Sequence[Tensor]) -> float | None:
    """The squared error of E2M3 over that of E3M2, both to nearest, in the first rows of matrices."""
    errors = dict.fromkeys((E3M2, E2M3), 0.0)
    for source in sources:
        rows, columns = source.shape
        values = as_float32(source.read_rows(0, min(SAMPLED_ROWS, rows)), source.dtype)[:, : columns // BLOCK * BLOCK]
        for name in errors:
            grid = Grid.of(name)
            change = round_with(values, grid, rule_exponents(values, grid)) - values
            errors[name] += rows * float(np.square(change).mean()) * columns if change.size else 0.0
    return errors[E2M3] / errors[E3M2] if errors[E3M2] else None
