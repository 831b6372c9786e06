"""Text that a model writes itself before its bundle is made, where the user gives none."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.progress import Stages
from mxspec.compile.trace.trace import Traces
from mxspec.compile.weights.pack_writer import pack_writer
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe, TargetRecipe
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import open_writer, text_length, write_texts
from mxspec.runtime.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class OwnText:
    """What a model writes: about `calibration_tokens` of the recipe, with ids below `known`.

    `context` is the model's context length; `traces` are those of its plan, if there is one, and `taps` the layers
    whose states its graph gives.
    """

    name: ModelName
    checkpoint: Checkpoint
    known: int
    context: int
    recipe: Recipe
    traces: Traces | None = None
    taps: Sequence[int] = ()

    def write(self, place: Path, stages: Stages) -> NDArray[np.int64]:
        """Token ids int64[texts, length], kept below `place`, where a later run finds them.

        Raises MxspecError for a damaged checkpoint.
        """
        length = text_length(self.context)
        count = max(1, self.recipe.calibration_tokens // length)
        key = self.checkpoint.fingerprint(f"{self.recipe.seed} {count} {length}")[:16]
        path = place / f"{self.name}-text-{key}.npy"
        if not path.is_file():
            windows = self._written(place, stages, count, length)
            beside = path.with_suffix(".part.npy")
            np.save(beside, windows)
            beside.rename(path)
        kept: NDArray[np.int64] = np.load(path)
        return kept

    def _written(self, place: Path, stages: Stages, count: int, length: int) -> NDArray[np.int64]:
        folder = place / f"{self.name}-writer"
        wanted: TargetRecipe | None = self.recipe.draft if self.name == "draft" else self.recipe.target
        assert wanted is not None
        entry = pack_writer(
            self.name, self.checkpoint, wanted, self.recipe, self.context, folder, stages, self.traces, self.taps
        )
        tokenizer = load_tokenizer(self.checkpoint.tokenizer)
        openings = openings_of(self.checkpoint.folder, tokenizer)
        session = open_writer(folder, entry, self.known, count)
        with stages.work(f"write text ({self.name})", count * length) as advance:
            windows = write_texts(session, openings, count, length, self.recipe.seed, advance)
        del session
        shutil.rmtree(folder)
        return windows
