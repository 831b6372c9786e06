"""What moved between two records of a measurement."""

from __future__ import annotations

from pathlib import Path

import click

from bench.compare.compare import compare
from bench.documents.kinds import read
from mxspec.evaluate.options import Run
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command


@click.command(cls=Command)
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--least-move",
    default=0.02,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Smallest relative change that counts: two runs differ by more than the trials of one.",
)
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def main(old: Path, new: Path, least_move: float, json_output: bool) -> None:
    """Say which figures of two records of one measurement moved beyond noise; exit code 2 if one became slower.

    Judged by the records' trials: Welch's t-test of their logarithms, by pairs if the record says of which prompt
    and repetition each is, with Holm's correction over all figures (5 %).
    """
    result = compare(read(old), read(new), least_move)
    Run(None, json_output, record=None).finish(result)
    if slower := result.slower:
        worst = max(slower, key=lambda figure: abs((figure.ratio or 1) - 1))
        raise CheckFailed(
            f"{len(slower)} of {len(result.figures)} figures became slower beyond noise, most of all {worst.figure}: "
            f"{worst.ratio:.3f} of what it was"
        )
