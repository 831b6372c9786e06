"""The pictures of a record, and how they are written; those of `speccheck accuracy --format`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mxspec.evaluate.accuracy.result import Accuracy, Figures, name_of
from mxspec.evaluate.bench.plots import speculate
from mxspec.evaluate.bench.plots.style import COLOURS, QUIET, require_matplotlib, save
from mxspec.evaluate.bench.speculate.result import SpeculationResult
from mxspec.evaluate.record import Record, read_record
from mxspec.evaluate.result import Result
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import Command

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DRAWN = (SpeculationResult, Accuracy)


def pictures_of(result: Result) -> dict[str, Callable[[Axes], None]]:
    """The pictures of a result by name; empty if it has none."""
    if isinstance(result, SpeculationResult):
        return speculate.pictures(result)
    if isinstance(result, Accuracy) and result.beside and result.matrix_bytes:
        return {"accuracy": partial(sizes, result)}
    return {}


def sizes(result: Accuracy, axes: Axes) -> None:
    """KL divergence over the size of the matrices, with ratios: the bundle's target, and other formats to nearest."""
    _points(axes, [result], "the bundle", COLOURS[1], left=True)
    _points(axes, result.beside, "to nearest", QUIET, left=False)
    axes.set(xlabel="size of the matrices (MB)", ylabel="KL divergence from fp16 (nats)", yscale="log")
    axes.set_title(f"{result.bundle}, {result.tokens:,} tokens")
    axes.margins(x=0.2, y=0.15)
    axes.legend(loc="best")


def _points(axes: Axes, figures: tuple[Figures, ...] | list[Accuracy], label: str, colour: str, *, left: bool) -> None:
    points = [(each.matrix_bytes / 1e6, each.mean_kl_divergence, each) for each in figures if each.matrix_bytes]
    axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], color=colour, label=label)
    offset, side = ((-6, 0), "right") if left else ((6, 0), "left")
    for x, y, each in points:
        text = f"{name_of(each)} ({each.ratio:.3f})"
        axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", ha=side, va="center", fontsize=9)


def draw_all(record: Record, folder: Path, kinds: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Write every picture of a record as RECORD-PICTURE.png and .svg. Raises MxspecError if it has none."""
    require_matplotlib()
    pictures = pictures_of(record.result)
    if not pictures:
        known = "specbench speculate, or speccheck accuracy with --format"
        raise MxspecError(f"{record.name}: no picture can be made of it; expected {known}")
    paths = [folder / f"{Path(record.name).stem}-{name}" for name in pictures]
    for path, draw in zip(paths, pictures.values(), strict=True):
        save(path, record, draw, kinds)
    return [path.with_suffix(f".{kind}") for path in paths for kind in kinds]


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
    """Draw records of `specbench speculate`, and of `speccheck accuracy` with other formats, as PNG and SVG.

    Speedup over K beside the formula's, acceptance by position, time for 128 tokens, speed over prompt tokens and over
    texts at once, accuracy over size. The same record gives the same SVG.
    """
    found = [read_record(path, DRAWN, "no picture can be made of it") for path in records]
    stems = [path.stem for path in records]
    if len(set(stems)) < len(stems):
        raise MxspecError(f"RECORD: got {', '.join(stems)}; expected names that tell their pictures apart")
    for record in found:
        for path in draw_all(record, output):
            click.echo(path)
