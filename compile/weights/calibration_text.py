"""Text that a model writes itself before its bundle is made, where the user gives none."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import open_writer, text_length, write_texts
from mxspec.runtime.text.tokenizer import load_tokenizer

# Half the bytes of fp16, and nearer to the checkpoint than any format of fewer bits.
WRITER = {"format": "mxint8", "formats": (), "keep_fp16": (), "budget": None, "max_ratio": None, "activations": "int8"}


def write_calibration_text(model: Model, tokens: int, place: Path, stages: Stages) -> NDArray[np.int64]:
    """About `tokens` tokens that the model writes: token ids int64[texts, length].

    They are kept below `place`, where a later run finds them. Raises MxspecError for a damaged checkpoint.
    """
    length = text_length(model.context_length)
    count = max(1, tokens // length)
    key = model.checkpoint.fingerprint(f"{model.recipe.seed} {count} {length}")[:16]
    path = place / f"{model.name}-text-{key}.npy"
    if not path.is_file():
        windows = _written(model, place, stages, count, length)
        beside = path.with_suffix(".part.npy")
        np.save(beside, windows)
        beside.rename(path)
    kept: NDArray[np.int64] = np.load(path)
    return kept


def _written(model: Model, place: Path, stages: Stages, count: int, length: int) -> NDArray[np.int64]:
    folder = place / f"{model.name}-writer"
    entry = pack_writer(model, folder, stages)
    openings = openings_of(model.checkpoint.folder, load_tokenizer(model.checkpoint.tokenizer))
    session = open_writer(folder, entry, model.known, count)
    with stages.work(f"write text ({model.name})", count * length) as advance:
        windows = write_texts(session, openings, count, length, model.recipe.seed, advance)
    del session
    shutil.rmtree(folder)
    return windows


def pack_writer(model: Model, folder: Path, stages: Stages) -> ModelEntry:
    """Make `folder`, whatever was there, with a form of the model that writes. Raises MxspecError if it is damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plan = plan_model(replace(model, wanted=model.wanted.model_copy(update=WRITER)))
    with stages.bytes(f"pack {model.name} to write", plan.read_bytes) as advance:
        return write_model(plan, folder, advance).entry
