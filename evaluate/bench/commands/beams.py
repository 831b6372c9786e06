"""specbench beams: beam search with and without a draft."""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.bench.beams.measure import BeamsBench, measure
from mxspec.evaluate.bench.options import Choice, choice_options, parse_ks, repetitions_option
from mxspec.evaluate.bench.prompts import read_prompts
from mxspec.evaluate.options import Run, run_options
from mxspec.runtime.cli.command import Command
from mxspec.runtime.engine import SLOTS
from mxspec.runtime.request import K


@click.command("beams", cls=Command)
@choice_options
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.")
@click.option("--prompts", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=64, show_default=True, type=click.IntRange(min=4))
@click.option("--beams", default=4, show_default=True, type=click.IntRange(min=2))
@click.option("--slots", default=SLOTS, show_default=True, type=click.IntRange(min=2), help="Of the engine.")
@click.option(
    "--k", "ks", multiple=True, callback=parse_ks, metavar="INTEGER|auto", help="May be repeated.  [default: auto]"
)
@repetitions_option(3)
@run_options
def bench_beams(
    choice: Choice,
    text_file: Path | None,
    prompts: int,
    new_tokens: int,
    beams: int,
    slots: int,
    ks: tuple[K, ...],
    repetitions: int,
    run: Run,
) -> None:
    """Time beam search with a draft that searches ahead against beam search without, alternating.

    Both find the same texts, which is checked. With random weights (--shape) a draft is never right: what is left then
    is what trying costs.
    """
    with run.progress() as progress:
        path = choice.path()
        bench = BeamsBench(path, read_prompts(path, text_file, prompts), new_tokens, beams, slots)
        result = measure(bench, ks or ("auto",), repetitions, progress)
    run.finish(result)
