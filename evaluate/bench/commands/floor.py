"""specbench floor: what the smallest steps of a call cost."""

from __future__ import annotations

import click

from mxspec.evaluate.bench.floor.result import FloorResult
from mxspec.evaluate.bench.options import repetitions_option, shape_option
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import Command

__all__ = ["FloorResult", "bench_floor"]


@click.command("floor", cls=Command)
@shape_option("smollm2-135m")
@repetitions_option(15)
@run_options
def bench_floor(shape: str, repetitions: int, run: Run) -> None:
    """Time what bounds small models: parallel regions, nodes that do nothing, small operators of one row."""
    try:
        from mxspec.evaluate.bench.floor.measure import measure
    except ModuleNotFoundError as error:
        raise MxspecError(f"its graphs are written with {error.name}: pip install mxspec[compile]") from None
    with run.progress() as progress:
        result = measure(SHAPES[shape], repetitions, progress)
    run.finish(result)
