"""specbench caches: calls after many tokens, with each kind of key-value caches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from mxspec.evaluate.bench.caches.result import CachesResult
from mxspec.evaluate.bench.options import check_activations, exporting, repetitions_option
from mxspec.evaluate.bench.shapes.kept import RANDOM
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.caches import CACHE_KINDS, CacheKind
from mxspec.formats.weight_format import ACTIVATIONS, USER_NAMES, Activations, named_by_user
from mxspec.recipes.recipe import TargetRecipe
from mxspec.runtime.cli.command import Command

__all__ = ["CachesResult", "bench_caches"]


@click.command("caches", cls=Command)
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="tinyllama-1.1b", show_default=True)
@click.option("--format", "weight_format", type=click.Choice(USER_NAMES), default="mxfp6_e2m3", show_default=True)
@click.option("--activations", type=click.Choice(ACTIVATIONS), default="int8", show_default=True)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(CACHE_KINDS),
    multiple=True,
    default=("float16", "mxint8"),
    show_default=True,
    help="Kind of caches; repeatable. Speeds are those over the first.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8),
    show_default=True,
    help="Tokens of a call; repeatable.",
)
@click.option(
    "--cached",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1000, 8192),
    show_default=True,
    help="Tokens that the caches hold before; repeatable.",
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
    with exporting():
        from mxspec.evaluate.bench.caches.measure import measure
    with tempfile.TemporaryDirectory(prefix="mxspec-caches-") as work, run.progress() as progress:
        result = measure(SHAPES[shape], target, kinds, tokens, cached, Path(work), repetitions, progress)
    run.finish(result)
