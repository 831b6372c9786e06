"""Run a compiled model at every length that it was compiled for; for a large model, run a small twin instead."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from transformers import PreTrainedConfig

from mxspec.compile.check.specialize import check_specializations
from mxspec.compile.check.twin import VOCABULARY, taps_of_twin, write_twin
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.plan import ModelPlan, plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import Recipe, TargetRecipe

LARGE_WEIGHTS = 1 << 30  # bytes; reading more than that for each of dozens of calls would take minutes


def check_model(plan: ModelPlan, folder: Path, entry: ModelEntry, vocab_size: int) -> bool:
    """Run the model at all its lengths, or only a single step of a large one; return whether all lengths were run.

    Raises CheckFailed.
    """
    small = plan.layout.file_bytes <= LARGE_WEIGHTS
    check_specializations(folder, entry, vocab_size, plan.specializations if small else (1,))
    return small


def check_twin(plan: ModelPlan, config: PreTrainedConfig, wanted: TargetRecipe, recipe: Recipe) -> None:
    """Compile a small twin of this model's configuration and run it at all lengths. Raises CheckFailed."""
    wanted = wanted.model_copy(
        update={
            "format": plan.weight_format,
            "formats": (),
            "keep_fp16": (),
            "tied": "once" if plan.shares_table else "twice",
        }
    )  # their patterns may name layers that the twin lacks, and its weights are not MX yet
    with tempfile.TemporaryDirectory(prefix="mxspec-twin-") as place:
        folder = Path(place)
        write_twin(config, folder)
        with Checkpoint(folder) as checkpoint:
            rows = None if plan.rows is None else np.arange(min(VOCABULARY // 2, len(plan.rows)))
            taps = taps_of_twin(plan.taps, config, checkpoint.config)
            twin = plan_model(plan.name, checkpoint, wanted, recipe, plan.exported.context_length, rows=rows, taps=taps)
            entry = write_model(twin, folder, lambda count: None).entry
        check_specializations(folder, entry, entry.vocab_size, twin.specializations)
