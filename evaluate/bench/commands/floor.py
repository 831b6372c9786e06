"""specbench floor: what the smallest steps of a call cost."""

from __future__ import annotations

import click

from mxspec.evaluate.bench.floor.result import FloorResult
from mxspec.evaluate.bench.options import repetitions_option, shape_option
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import needs
from mxspec.runtime.cli.command import Command

__all__ = ["FloorResult", "bench_floor"]


@click.command("floor", cls=Command)
@shape_option("smollm2-135m")
@repetitions_option(15)
@run_options
def bench_floor(shape: str, repetitions: int, run: Run) -> None:
    """Time what bounds small models: parallel regions, nodes that do nothing, small operators of one row."""
    with needs("compile", "specbench floor"):
        from mxspec.evaluate.bench.floor.measure import measure
    with run.progress() as progress:
        result = measure(SHAPES[shape], repetitions, progress)
    run.finish(result)
