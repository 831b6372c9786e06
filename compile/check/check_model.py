"""Run a compiled model at every length that it was compiled for; for a large model, run a small twin instead."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from mxspec.compile.check.specialize import check_specializations
from mxspec.compile.check.twin import VOCABULARY, outputs_of_twin, write_twin
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.trace.trace import Traces
from mxspec.compile.weights.write_model import write_model

LARGE_WEIGHTS = 1 << 30  # bytes; reading more than that for each of dozens of calls would take minutes


def check_model(model: Model, folder: Path) -> None:
    """Run a written model of the bundle in `folder` at all its lengths; of a large one a single step, and a twin.

    Raises CheckFailed.
    """
    small = model.plan.layout.file_bytes <= LARGE_WEIGHTS
    check_specializations(folder, model.entry, model.known, model.plan.specializations if small else (1,))
    if not small:
        check_twin(model)


def check_twin(model: Model) -> None:
    """Compile a small twin of this model's configuration and run it at all lengths. Raises CheckFailed."""
    config, plan, rows = model.config, model.plan, model.rows
    wanted = model.wanted.model_copy(
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
            twin = replace(
                model,
                source=checkpoint,
                wanted=wanted,
                rows=None if rows is None else np.arange(min(VOCABULARY // 2, len(rows))),
                hidden_state_outputs=outputs_of_twin(model.hidden_state_outputs, config, checkpoint.config),
                traces=Traces(),
            )
            twin.plan = plan_model(twin)
            entry = write_model(twin.plan, folder, lambda count: None).entry
        check_specializations(folder, entry, entry.vocab_size, twin.plan.specializations)
