"""specbench ops: the packed product, attention and experts alone."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mxspec.evaluate.bench.ops.experts import ROWS as EXPERTS_ROWS
from mxspec.evaluate.bench.ops.measure import FORMATS, ROWS, available, measure
from mxspec.evaluate.bench.options import repetitions_option
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import MxspecError
from mxspec.formats.native import ISAS
from mxspec.formats.weight_format import ACTIVATIONS, Activations
from mxspec.runtime.cli.command import Command


@click.command("ops", cls=Command)
@click.option(
    "--isa",
    "isas",
    multiple=True,
    type=click.Choice(ISAS),
    help="Time only this instruction set. May be given several times.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Time only this format. May be given several times.",
)
@click.option(
    "--activations",
    multiple=True,
    type=click.Choice(ACTIVATIONS),
    help="Time only products that round their inputs to this type. May be given several times.",
)
@click.option(
    "--rows",
    multiple=True,
    type=click.IntRange(min=1),
    help="Time only calls of this number of rows. May be given several times.",
)
@repetitions_option(5)
@run_options
def bench_ops(
    isas: tuple[str, ...],
    formats: tuple[str, ...],
    activations: tuple[Activations, ...],
    rows: tuple[int, ...],
    repetitions: int,
    run: Run,
) -> None:
    """Time the packed product, attention and experts alone, on every instruction set, each call beside a plain read."""
    require_isas(isas)
    with run.progress() as progress:
        result = measure(
            isas or ISAS,
            formats or FORMATS,
            activations or ACTIVATIONS,
            rows or ROWS,
            repetitions,
            progress,
            rows or EXPERTS_ROWS,
        )
    run.finish(result)


def require_isas(isas: Sequence[str]) -> None:
    """Raises MxspecError for an instruction set that this machine does not have."""
    has = available(ISAS)
    for isa in isas:
        if isa not in has:
            raise MxspecError(f"--isa {isa}: this machine does not have it; it has {', '.join(has)}")
