"""specbench model: a whole target."""

from __future__ import annotations

import click

from mxspec.evaluate.bench.model.measure import measure
from mxspec.evaluate.bench.options import Choice, choice_options, repetitions_option
from mxspec.evaluate.options import Run, run_options
from mxspec.runtime.cli.command import Command


@click.command("model", cls=Command)
@choice_options
@repetitions_option(5)
@run_options
def bench_model(choice: Choice, repetitions: int, run: Run) -> None:
    """Time a whole target: decoding, scoring, prefill, loading, memory."""
    with run.progress() as progress:
        result = measure(choice.path(), repetitions, progress)
    run.finish(result)
