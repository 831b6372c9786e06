"""Pack a checkpoint to have it write text before its bundle is made.

What writes is the checkpoint in MXINT8 with int8 rows: half the bytes of fp16, and nearer to the checkpoint than any
format of fewer bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.trace.trace import Traces
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelEntry, ModelName
from mxspec.recipes.recipe import Recipe, TargetRecipe

WRITER = {"format": "mxint8", "formats": (), "keep_fp16": (), "budget": None, "max_ratio": None, "activations": "int8"}


def pack_writer(
    name: ModelName,
    checkpoint: Checkpoint,
    wanted: TargetRecipe,
    recipe: Recipe,
    context_length: int,
    folder: Path,
    stages: Stages,
    traces: Traces | None = None,
    taps: Sequence[int] = (),
) -> ModelEntry:
    """Make `folder`, whatever was there, with a model that writes; with `taps` it gives the states that enter them.

    Raises MxspecError for a damaged checkpoint.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = wanted.model_copy(update=WRITER)
    writer = plan_model(name, checkpoint, wanted, recipe, context_length, traces, taps=taps)
    with stages.bytes(f"pack {name} to write", writer.read_bytes) as advance:
        return write_model(writer, folder, advance).entry
