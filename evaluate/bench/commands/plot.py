"""specbench plot: pictures of records."""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.bench.plots.draw import DRAWN, draw_all
from mxspec.evaluate.bench.records import read_record
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import Command


@click.command("plot", cls=Command)
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RECORD...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write the pictures to.",
)
def bench_plot(records: tuple[Path, ...], output: Path) -> None:
    """Draw records of sweep, speculate, columns, batch, and accuracy with other formats, as PNG and SVG.

    Speedup over K beside the formula's, acceptance by position, time for 128 tokens, speed over prompt tokens and over
    texts at once, columns as bars, accuracy over size. The same record gives the same SVG.
    """
    found = [read_record(path, DRAWN) for path in records]
    stems = [path.stem for path in records]
    if len(set(stems)) < len(stems):
        raise MxspecError(f"RECORD: got {', '.join(stems)}; expected names that tell their pictures apart")
    for record in found:
        for path in draw_all(record, output):
            click.echo(path)
