"""specbench batch: many texts at once."""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.bench.batch.bench import BatchBench
from mxspec.evaluate.bench.batch.measure import measure
from mxspec.evaluate.bench.options import bundle_argument, new_tokens_option, repetitions_option
from mxspec.evaluate.options import Run, run_options
from mxspec.runtime.cli.command import Command


@click.command("batch", cls=Command)
@bundle_argument
@new_tokens_option(64)
@click.option(
    "--acceptance",
    default=0.75,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Acceptance imposed on the draft.",
)
@repetitions_option(3)
@run_options
def bench_batch(bundle: Path, new_tokens: int, acceptance: float, repetitions: int, run: Run) -> None:
    """Time 1, 2, 4 and 8 texts at once at every K, compared with their calls alone; and the second turn of a chat."""
    with run.progress() as progress:
        result = measure(BatchBench(bundle, new_tokens, acceptance), repetitions, progress)
    run.finish(result)
