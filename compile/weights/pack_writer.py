"""Pack a checkpoint to have it write text before its bundle is made.

What writes is the checkpoint in MXINT8 with int8 rows: half the bytes of fp16, and nearer to the checkpoint than any
format of fewer bits.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelEntry

WRITER = {"format": "mxint8", "formats": (), "keep_fp16": (), "budget": None, "max_ratio": None, "activations": "int8"}


def pack_writer(model: Model, folder: Path, stages: Stages) -> ModelEntry:
    """Make `folder`, whatever was there, with a form of the model that writes. Raises MxspecError if it is damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plan = plan_model(replace(model, wanted=model.wanted.model_copy(update=WRITER)))
    with stages.bytes(f"pack {model.name} to write", plan.read_bytes) as advance:
        return write_model(plan, folder, advance).entry
