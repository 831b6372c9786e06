"""Time the steps of a draft of random weights with its whole head and with trimmed ones, alternating."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import click
import numpy as np

from bench.measurement import format_option, measurement
from bench.shapes.known import RANDOM, SHAPES, Shape
from bench.shapes.random_bundle import config_of, write_random_model
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.evaluate.bench.harness import Quartiles, median, quartiles, seconds_of, trials_of
from mxspec.evaluate.bench.options import repetitions_option
from mxspec.evaluate.options import Progress, silent
from mxspec.evaluate.result import SPREAD, Column, Result, Sheet, Spread, Value
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import WEIGHT_FORMATS, named_by_user
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe
from mxspec.runtime import ops
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper

CACHED = 256  # tokens
STEPS = 4  # in a trial


class HeadTimes(Value):
    """Steps of a draft whose head has `rows` rows; over_whole is the median ratio to steps with the whole head."""

    rows: int
    head_bytes: int
    read_bytes: int
    seconds: float
    seconds_quartiles: Quartiles
    over_whole: float
    over_whole_quartiles: Quartiles
    trials_seconds: tuple[float, ...]


class HeadResult(Result):
    """A draft's step, call and greedy choice, with each head."""

    kind: ClassVar[str] = "head"
    faster_if_less = ("seconds",)

    shape: str
    format: str
    threads: int
    cached: int
    heads: tuple[HeadTimes, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("rows of the head", ","),
            Column("head, MB", ",.0f", 1e-6),
            Column("read a step, MB", ",.0f", 1e-6),
            Column("ms a step", ".2f", 1e3),
            Column("over the whole head", ".2f"),
        )
        rows = tuple(
            (
                head.rows,
                head.head_bytes,
                head.read_bytes,
                Spread.of(head.seconds, head.seconds_quartiles),
                Spread.of(head.over_whole, head.over_whole_quartiles),
            )
            for head in self.heads
        )
        title = f"a draft of {self.shape}'s shape, {self.format}, {self.threads} threads, {self.cached:,} cached tokens"
        note = "A step is a call of one token, and the choice of the next. The ratio is of steps in the same turn."
        return [Sheet(title, columns, rows, (note, SPREAD))]


class Draft:
    """A draft of random weights, some tokens into a text."""

    def __init__(self, folder: Path, shape: Shape, weight_format: str, rows: int) -> None:
        trimmed = rows if rows < shape.vocab_size else None
        draft = DraftRecipe(checkpoint=RANDOM, format=weight_format, vocabulary=trimmed)
        recipe = Recipe(name="head", target=TargetRecipe(checkpoint=RANDOM), draft=draft)
        folder.mkdir()
        plan = plan_without_weights(Model("draft", config_of(shape), draft, recipe, shape.context_length))
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


@measurement
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="qwen2.5-0.5b", show_default=True)
@format_option("fp16")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    multiple=True,
    default=(32768, 8192),
    show_default=True,
    help="Number of rows of a trimmed head. May be given several times.",
)
@repetitions_option(15)
def main(shape: str, weight_format: str, rows: tuple[int, ...], repetitions: int, progress: Progress) -> HeadResult:
    """Time a draft's step with its whole head and with trimmed ones, with random weights of a known shape."""
    if largest := next((count for count in rows if count > SHAPES[shape].vocab_size), None):
        raise MxspecError(f"--rows: got {largest}, expected at most {SHAPES[shape].vocab_size}, the tokens of {shape}")
    with tempfile.TemporaryDirectory(prefix="mxspec-head-") as work:
        return measure(SHAPES[shape], named_by_user(weight_format), rows, Path(work), repetitions, progress)
