"""Text that a model writes itself before its bundle is made, where the user gives none."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.planning.model import Model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.pack_writer import pack_writer
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import open_writer, text_length, write_texts
from mxspec.runtime.text.tokenizer import load_tokenizer


def write_calibration_text(model: Model, place: Path, stages: Stages) -> NDArray[np.int64]:
    """About `calibration_tokens` of the recipe that the model writes: token ids int64[texts, length].

    They are kept below `place`, where a later run finds them. Raises MxspecError for a damaged checkpoint.
    """
    length = text_length(model.context_length)
    count = max(1, model.recipe.calibration_tokens // length)
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
