"""specbench model: a whole target."""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.bench.model.measure import measure
from mxspec.evaluate.bench.options import bundle_argument, repetitions_option
from mxspec.evaluate.options import Run, run_options
from mxspec.runtime.cli.command import Command


@click.command("model", cls=Command)
@bundle_argument
@repetitions_option(5)
@run_options
def bench_model(bundle: Path, repetitions: int, run: Run) -> None:
    """Time a whole target: decoding, scoring, prefill, loading, memory."""
    with run.progress() as progress:
        result = measure(bundle, repetitions, progress)
    run.finish(result)
