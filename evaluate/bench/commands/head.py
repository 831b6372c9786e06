"""specbench head: a draft's step with its whole head, and with trimmed ones."""

from __future__ import annotations

import click

from mxspec.evaluate.bench.head.result import HeadResult
from mxspec.evaluate.bench.options import format_option, measuring, repetitions_option, shape_option
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import MxspecError, needs
from mxspec.formats.weight_format import named_by_user
from mxspec.runtime.cli.command import Command

__all__ = ["HeadResult", "bench_head"]


@click.command("head", cls=Command)
@shape_option("qwen2.5-0.5b")
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
@run_options
def bench_head(shape: str, weight_format: str, rows: tuple[int, ...], repetitions: int, run: Run) -> None:
    """Time a draft's step with its whole head and with trimmed ones, with random weights of a known shape."""
    if largest := next((count for count in rows if count > SHAPES[shape].vocab_size), None):
        raise MxspecError(f"--rows: got {largest}, expected at most {SHAPES[shape].vocab_size}, the tokens of {shape}")
    with needs("compile", "specbench head"):
        from mxspec.evaluate.bench.head.measure import measure
    with measuring(run, "head") as (work, progress):
        result = measure(SHAPES[shape], named_by_user(weight_format), rows, work, repetitions, progress)
    run.finish(result)
