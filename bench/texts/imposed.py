"""Speculation with an imposed acceptance, for models whose weights are random and agree on nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.measurement import measurement
from bench.texts.guided import GuidedDrafter, draft_of
from mxspec.evaluate.bench.options import bundle_argument, new_tokens_option, parse_ks, repetitions_option
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS, Prompts
from mxspec.evaluate.bench.speculate.grid import points_of, require_runnable
from mxspec.evaluate.bench.speculate.measure import Measurement, TimedAnswer, write_together
from mxspec.evaluate.bench.speculate.result import SpeculationResult
from mxspec.evaluate.options import Progress
from mxspec.runtime import ops
from mxspec.runtime.cli.command import read_text
from mxspec.runtime.engine import Engine
from mxspec.runtime.settings import K


class ImposedWriter:
    """Writes as `write_together`, with guesses that are right with a given probability."""

    def __init__(self, acceptance: float) -> None:
        self._acceptance = acceptance
        self._texts: dict[tuple[int, ...], Sequence[int]] = {}  # the target's own, by their prompts or sources
        self._guided: dict[Engine, GuidedDrafter] = {}

    def __call__(self, engine: Engine, prompts: Sequence[Sequence[int]], settings: Mapping[str, Any]) -> TimedAnswer:
        if engine not in self._guided:
            self._guided[engine] = GuidedDrafter(draft_of(engine), self._texts, self._acceptance)
        guided = self._guided[engine]
        if settings["k"] != 0:
            return write_together(engine, prompts, {**settings, "drafter": guided})
        answered = write_together(engine, prompts, settings)
        guided.seed += 1
        for prompt, text in zip(prompts, answered.texts, strict=True):
            begin = list(engine.bundle.manifest.tokenizer.decoder_start) or list(prompt)
            self._texts[tuple(prompt)] = [*begin, *text]
        return answered


@measurement
@bundle_argument
@click.option("--acceptance", required=True, type=click.FloatRange(0, 1), help="Acceptance to impose on the draft.")
@click.option("--text", type=click.Path(path_type=Path), help="UTF-8 text of the prompts.  [default: random tokens]")
@click.option(
    "--k",
    "ks",
    multiple=True,
    callback=parse_ks,
    default=("1", "2", "4", "auto"),
    show_default=True,
    metavar="INTEGER|auto",
    help="Number of tokens drafted in a round. May be given several times.",
)
@click.option(
    "--context", default=PROMPT_TOKENS, show_default=True, type=click.IntRange(min=1), help="Tokens of a prompt."
)
@click.option(
    "--batch",
    multiple=True,
    default=(1,),
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of texts at the same time. May be given several times.",
)
@click.option("--prompts", default=4, show_default=True, type=click.IntRange(min=1), help="Minimum number of prompts.")
@new_tokens_option(128)
@repetitions_option(3)
def main(
    bundle: Path,
    acceptance: float,
    text: Path | None,
    ks: tuple[K, ...],
    context: int,
    batch: tuple[int, ...],
    prompts: int,
    new_tokens: int,
    repetitions: int,
    progress: Progress,
) -> SpeculationResult:
    """Time greedy speculative beside plain decoding with guesses that are right with a given probability."""
    decoding = {"temperature": (0.0,), "drafter": ("model",), "verifier": ("auto",), "k": ks}
    points = points_of((bundle,), threads=(ops.threads(),), batch=batch, context=(context,), **decoding)
    require_runnable((bundle,), points, new_tokens, fp16=False)
    asked = Prompts(None if text is None else read_text(text, "--text"), None, prompts)
    measured = Measurement({bundle.name: bundle}, asked, new_tokens, repetitions, write=ImposedWriter(acceptance)).run(
        points, progress
    )
    return SpeculationResult(prompts=prompts, new_tokens=new_tokens, repetitions=repetitions, points=tuple(measured))
