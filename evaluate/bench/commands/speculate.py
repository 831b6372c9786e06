"""specbench speculate: does speculation pay?"""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.bench.options import (
    SPEAKING,
    bundle_argument,
    new_tokens_option,
    parse_ks,
    repetitions_option,
)
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS, read_prompts
from mxspec.evaluate.bench.speculate.bench import SpeculateBench
from mxspec.evaluate.bench.speculate.measure import measure
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import Command
from mxspec.runtime.request import K

MOST_K = 8


@click.command("speculate", cls=Command)
@bundle_argument
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path),
    help="UTF-8 text to take prompts from; encoders read lines of it.",
)
@click.option("--prompts", default=8, show_default=True, type=click.IntRange(min=1), help="Number of prompts.")
@click.option(
    "--source-tokens",
    default=PROMPT_TOKENS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Length of random sources.",
)
@new_tokens_option(128)
@click.option(
    "--acceptance",
    type=click.FloatRange(0, 1),
    help="Impose this acceptance on the draft: random weights agree on nothing.",
)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    type=click.Choice(SPEAKING),
    help="Drafter to time. May be given several times.  [default: model]",
)
@click.option(
    "--k",
    "ks",
    multiple=True,
    callback=parse_ks,
    metavar="INTEGER|auto",
    help="Number of tokens drafted in a round. May be given several times.  [default: 1 to 8, auto]",
)
@repetitions_option(3)
@run_options
def bench_speculate(
    bundle: Path,
    text_file: Path | None,
    prompts: int,
    source_tokens: int,
    new_tokens: int,
    acceptance: float | None,
    drafters: tuple[str, ...],
    ks: tuple[K, ...],
    repetitions: int,
    run: Run,
) -> None:
    """Time speculative against plain decoding for every K, beside what the formula predicts.

    Texts are greedy and go on after an end of text. c and v are what a drafted token and a scored round cost over a
    plain step, in the rounds themselves; ideal and predicted are (1 - a^(K+1)) / (1 - a) tokens a round, and that over
    cK + v, for the acceptance a of each answer and the K that each of its rounds drafted.
    """
    with run.progress() as progress:
        bench = SpeculateBench(bundle, read_prompts(bundle, text_file, prompts, source_tokens), new_tokens, acceptance)
        most = bench.engine.bundle.manifest.k_max
        if any(k > most for k in ks if k != "auto"):
            raise MxspecError(
                f"--k: got {max(k for k in ks if k != 'auto')}, but the bundle was compiled for at most {most}"
            )
        every = ks or (*range(1, min(MOST_K, most) + 1), "auto")
        result = measure(bench, every, repetitions, drafters or ("model",), progress)
    run.finish(result)
