"""Time the steps of a draft of random weights with its whole head and with trimmed ones, alternating."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mxspec.compile.planning.plan import plan_without_weights
from mxspec.evaluate.bench.harness import seconds_of, trials_of
from mxspec.evaluate.bench.head.result import HeadResult, HeadTimes
from mxspec.evaluate.bench.medians import median, quartiles
from mxspec.evaluate.bench.shapes.kept import RANDOM
from mxspec.evaluate.bench.shapes.known import Shape
from mxspec.evaluate.bench.shapes.random_bundle import config_of, write_random_model
from mxspec.evaluate.progress import Progress, silent
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import WEIGHT_FORMATS
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe
from mxspec.runtime import ops
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper

CACHED = 256  # tokens
STEPS = 4  # in a trial


class Draft:
    """A draft of random weights, some tokens into a text."""

    def __init__(self, folder: Path, shape: Shape, weight_format: str, rows: int) -> None:
        trimmed = rows if rows < shape.vocab_size else None
        draft = DraftRecipe(checkpoint=RANDOM, format=weight_format, vocabulary=trimmed)
        recipe = Recipe(name="head", target=TargetRecipe(checkpoint=RANDOM), draft=draft)
        folder.mkdir()
        plan = plan_without_weights("draft", config_of(shape), draft, recipe, shape.context_length)
        self.entry: ModelEntry = write_random_model(plan, folder).entry
        tokens = None if trimmed is None else DraftTokens(np.arange(rows), shape.vocab_size)
        self._session = Session(folder, self.entry, shape.vocab_size, slots=1, tokens=tokens)
        self._shaper = Shaper(Sampling(0.0), [], vocab_size=shape.vocab_size, eos=())
        self._session.run_head([Part(0, 0, list(range(CACHED)), 1)])

    def step(self) -> int:
        """One guess after the cached tokens."""
        row = self._session.run_head([Part(0, CACHED, [1], 1)])[0]
        return self._shaper.greedy(row, (), self._session.head_ids)

    def seconds(self) -> float:
        """Of one step, the median of a few."""
        return median([seconds_of(self.step) for _ in range(STEPS)])

    @property
    def read_bytes(self) -> int:
        """Bytes of matrices that a step reads."""
        return sum(tensor.bytes for tensor in self.entry.tensors if tensor.format in WEIGHT_FORMATS)

    @property
    def head_bytes(self) -> int:
        return next(tensor.bytes for tensor in self.entry.tensors if tensor.name == "lm_head.weight")


def measure(
    shape: Shape, weight_format: str, rows: Sequence[int], work: Path, repetitions: int, progress: Progress = silent
) -> HeadResult:
    """Time steps with the whole head and with heads of `rows` rows; the models are written below `work`."""
    counts = [shape.vocab_size, *sorted(set(rows) - {shape.vocab_size}, reverse=True)]
    drafts = {count: Draft(work / str(count), shape, weight_format, count) for count in counts}
    trials = trials_of(counts, lambda count: drafts[count].seconds(), repetitions, progress, warm=True, both_ways=True)
    whole = trials[shape.vocab_size]
    return HeadResult(
        shape=shape.name,
        format=weight_format,
        threads=ops.threads(),
        cached=CACHED,
        heads=tuple(_describe(count, drafts[count], trials[count], whole) for count in counts),
    )


def _describe(rows: int, draft: Draft, seconds: Sequence[float], whole: Sequence[float]) -> HeadTimes:
    ratios = [own / other for own, other in zip(seconds, whole, strict=True)]
    return HeadTimes(
        rows=rows,
        head_bytes=draft.head_bytes,
        read_bytes=draft.read_bytes,
        seconds=median(seconds),
        seconds_quartiles=quartiles(seconds),
        over_whole=median(ratios),
        over_whole_quartiles=quartiles(ratios),
        trials_seconds=tuple(seconds),
    )
