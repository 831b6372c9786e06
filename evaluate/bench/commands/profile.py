"""specbench profile: where the time of a call goes."""

from __future__ import annotations

import click

from mxspec.evaluate.bench.options import Choice, choice_options, repetitions_option
from mxspec.evaluate.bench.profile.measure import measure
from mxspec.evaluate.options import Run, run_options
from mxspec.runtime.cli.command import Command


@click.command("profile", cls=Command)
@choice_options
@click.option(
    "--rows",
    multiple=True,
    type=click.IntRange(min=1),
    help="Number of tokens of a call. May be given several times.  [default: 1, 8]",
)
@click.option(
    "--cached",
    multiple=True,
    type=click.IntRange(min=0),
    help="Number of tokens in the cache before the call. May be given several times.  [default: 128, 1000]",
)
@repetitions_option(5)
@run_options
def bench_profile(choice: Choice, rows: tuple[int, ...], cached: tuple[int, ...], repetitions: int, run: Run) -> None:
    """Say where the time of a target's call goes: kinds of nodes, between them, outside the session."""
    with run.progress() as progress:
        result = measure(choice.path(), repetitions, rows, cached, progress)
    run.finish(result)
