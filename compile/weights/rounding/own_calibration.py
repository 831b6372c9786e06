"""A calibration text where the user gives none: the model writes it, before its matrices are rounded."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.plan import ModelPlan
from mxspec.compile.progress import Stages
from mxspec.compile.weights.pack_writer import pack_writer
from mxspec.compile.weights.rounding.text import CalibrationText
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.own_text.openings import openings_of
from mxspec.runtime.own_text.write import open_writer, text_length, write_texts
from mxspec.runtime.text.tokenizer import load_tokenizer


def write_calibration(
    plan: ModelPlan, checkpoint: Checkpoint, known: int, recipe: Recipe, place: Path, stages: Stages
) -> CalibrationText:
    """About `calibration_tokens` tokens that the model writes, with ids below `known`.

    They are kept below `place`, where a later run finds them. Raises MxspecError for a damaged checkpoint.
    """
    length = text_length(plan.exported.context_length)
    count = max(1, recipe.calibration_tokens // length)
    path = place / f"{plan.name}-text-{_key(plan, recipe.seed, count, length)}.npy"
    if not path.is_file():
        windows = _write(plan, checkpoint, known, recipe, place, stages, count, length)
        beside = path.with_suffix(".part.npy")
        np.save(beside, windows)
        beside.rename(path)
    return CalibrationText(np.load(path), None)


def writer_bytes(plan: ModelPlan) -> int:
    """About what the model that writes takes on disk."""
    return plan.weight_count * 9 // 8


def _write(
    plan: ModelPlan,
    checkpoint: Checkpoint,
    known: int,
    recipe: Recipe,
    place: Path,
    stages: Stages,
    count: int,
    length: int,
) -> NDArray[np.int64]:
    folder = place / f"{plan.name}-writer"
    wanted, context = recipe.draft if plan.name == "draft" else recipe.target, plan.exported.context_length
    assert wanted is not None
    entry = pack_writer(plan.name, checkpoint, wanted, recipe, context, folder, stages, plan.traces, plan.taps)
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    openings = openings_of(checkpoint.folder, tokenizer)
    session = open_writer(folder, entry, known, count)
    with stages.work(f"write text ({plan.name})", count * length) as advance:
        windows = write_texts(session, openings, count, length, recipe.seed, advance)
    del session
    shutil.rmtree(folder)
    return windows


def _key(plan: ModelPlan, seed: int, count: int, length: int) -> str:
    digest = hashlib.sha256(f"{seed} {count} {length}\n".encode())
    for name, source in sorted(plan.sources.items()):
        digest.update(f"{name} {source.name} {source.identity}\n".encode())
    return digest.hexdigest()[:16]
