"""specbench caches: calls after many tokens, with each kind of key-value caches."""

from __future__ import annotations

import click

from mxspec.evaluate.bench.caches.result import CachesResult
from mxspec.evaluate.bench.options import (
    check_activations,
    format_option,
    measuring,
    repetitions_option,
    shape_option,
)
from mxspec.evaluate.bench.shapes.kept import RANDOM
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.caches import CACHE_KINDS, CacheKind
from mxspec.formats.errors import needs
from mxspec.formats.weight_format import ACTIVATIONS, Activations, named_by_user
from mxspec.recipes.recipe import TargetRecipe
from mxspec.runtime.cli.command import Command

__all__ = ["CachesResult", "bench_caches"]


@click.command("caches", cls=Command)
@shape_option("tinyllama-1.1b")
@format_option("mxfp6_e2m3")
@click.option(
    "--activations",
    type=click.Choice(ACTIVATIONS),
    default="int8",
    show_default=True,
    help="Type that the inputs of products are rounded to.",
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(CACHE_KINDS),
    multiple=True,
    default=("float16", "mxint8"),
    show_default=True,
    help="Type of key-value caches; speeds are compared with the first. May be given several times.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8),
    show_default=True,
    help="Number of tokens of a call. May be given several times.",
)
@click.option(
    "--cached",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1000, 8192),
    show_default=True,
    help="Number of tokens that the caches hold before the call. May be given several times.",
)
@repetitions_option(7)
@run_options
def bench_caches(
    shape: str,
    weight_format: str,
    activations: Activations,
    kinds: tuple[CacheKind, ...],
    tokens: tuple[int, ...],
    cached: tuple[int, ...],
    repetitions: int,
    run: Run,
) -> None:
    """Time calls after many tokens with each kind of key-value caches, with random weights of a known shape."""
    check_activations(named_by_user(weight_format), activations)
    target = TargetRecipe(checkpoint=RANDOM, format=named_by_user(weight_format), activations=activations)
    with needs("compile", "specbench caches"):
        from mxspec.evaluate.bench.caches.measure import measure
    with measuring(run, "caches") as (work, progress):
        result = measure(SHAPES[shape], target, kinds, tokens, cached, work, repetitions, progress)
    run.finish(result)
