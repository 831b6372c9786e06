"""A bundle of random weights of a known shape, to measure as any bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from bench.measurement import activations_option, check_activations, format_option
from bench.shapes.known import ALL_SHAPES
from bench.shapes.random_bundle import random_bundle
from mxspec.formats.weight_format import Activations, named_by_user
from mxspec.runtime.cli.command import Command


@click.command(cls=Command)
@click.argument("name", type=click.Choice(sorted(ALL_SHAPES)), metavar="SHAPE")
@format_option("mxfp6_e3m2")
@activations_option("int16")
@click.option("--layers", type=click.IntRange(min=1), help="Number of layers.  [default: those of the shape]")
@click.option(
    "--work", default="build/shapes", show_default=True, type=click.Path(path_type=Path), help="Folder of the bundle."
)
def main(name: str, weight_format: str, activations: Activations, layers: int | None, work: Path) -> None:
    """Make a bundle of random weights of SHAPE and a small draft, if it is not there, and print its path.

    Shapes are those of well-known models: SHAPE is one of smollm2-135m, qwen2.5-0.5b, tinyllama-1.1b, llama-3.2-3b,
    llama-2-7b, llama-2-13b, t5-1.1-large, t5-1.1-xl, and the mixtures olmoe-1b-7b, qwen3-30b-a3b, gpt-oss-20b.
    """
    check_activations(named_by_user(weight_format), activations)
    work.mkdir(parents=True, exist_ok=True)
    shape = ALL_SHAPES[name] if layers is None else replace(ALL_SHAPES[name], layers=layers)
    click.echo(random_bundle(shape, work, named_by_user(weight_format), activations=activations))
