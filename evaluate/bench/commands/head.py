"""specbench head: a draft's step with its whole head, and with trimmed ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from mxspec.evaluate.bench.head.result import HeadResult
from mxspec.evaluate.bench.options import exporting, repetitions_option
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import MxspecError
from mxspec.formats.weight_format import USER_NAMES, named_by_user
from mxspec.runtime.cli.command import Command

__all__ = ["HeadResult", "bench_head"]


@click.command("head", cls=Command)
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="qwen2.5-0.5b", show_default=True)
@click.option("--format", "weight_format", type=click.Choice(USER_NAMES), default="fp16", show_default=True)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    multiple=True,
    default=(32768, 8192),
    show_default=True,
    help="Rows of a trimmed head; repeatable.",
)
@repetitions_option(15)
@run_options
def bench_head(shape: str, weight_format: str, rows: tuple[int, ...], repetitions: int, run: Run) -> None:
    """Time a draft's step with its whole head and with trimmed ones, with random weights of a known shape."""
    if largest := next((count for count in rows if count > SHAPES[shape].vocab_size), None):
        raise MxspecError(f"--rows: got {largest}, expected at most {SHAPES[shape].vocab_size}, the tokens of {shape}")
    with exporting():
        from mxspec.evaluate.bench.head.measure import measure
    with tempfile.TemporaryDirectory(prefix="mxspec-head-") as work, run.progress() as progress:
        result = measure(SHAPES[shape], named_by_user(weight_format), rows, Path(work), repetitions, progress)
    run.finish(result)
