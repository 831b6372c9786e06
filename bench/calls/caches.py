"""Time calls after many tokens with each kind of key-value caches, alternating."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import click

from bench.measurement import activations_option, check_activations, format_option, measurement
from bench.shapes.known import RANDOM, SHAPES, Shape
from bench.shapes.random_bundle import config_of, write_random_model
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.evaluate.bench.calls import CallBench, repeated
from mxspec.evaluate.bench.harness import Quartiles, median, quartiles, trials_of
from mxspec.evaluate.bench.machine import Pair, PairedTimes, ReadCeiling, describe_pairs, pieces_of_file
from mxspec.evaluate.bench.options import repetitions_option
from mxspec.evaluate.options import Progress, silent
from mxspec.evaluate.result import SPREAD, Column, Result, Sheet, Spread
from mxspec.formats.caches import CACHE_KINDS, CacheKind
from mxspec.formats.weight_format import Activations, named_by_user
from mxspec.recipes.recipe import Recipe, TargetRecipe
from mxspec.runtime import ops
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.weight_reads import read_bytes

CHUNK = 512  # tokens of a call that fills the caches
Case = tuple[CacheKind, int, int]  # kind, tokens of a call, cached tokens


class CacheTimes(PairedTimes):
    """Calls of `tokens` tokens after `cached`; over_first is the ratio of the first kind's time to theirs.

    The read is of the matrices and of the keys and values of the cached tokens.
    """

    kind: CacheKind
    tokens: int
    cached: int
    cache_bytes: int
    over_first: float
    over_first_quartiles: Quartiles


class CachesResult(Result):
    """Calls of one shape with each kind of caches, alternating."""

    kind: ClassVar[str] = "caches"
    faster_if_more = ("share_of_read",)
    faster_if_less = ("seconds",)

    shape: str
    format: str
    activations: str
    threads: int
    weight_bytes: int
    calls: tuple[CacheTimes, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("caches"),
            Column("tokens a call", ","),
            Column("cached", ","),
            Column("caches, MB", ",.0f", 1e-6),
            Column("ms a call", ".1f", 1e3),
            Column("share of a read", ".0%"),
            Column(f"speed over {self.calls[0].kind}", ".2f"),
        )
        rows = tuple(
            (
                call.kind,
                call.tokens,
                call.cached,
                call.cache_bytes,
                Spread.of(call.seconds, call.seconds_quartiles),
                Spread.of(call.share_of_read, call.share_quartiles),
                Spread.of(call.over_first, call.over_first_quartiles),
            )
            for call in self.calls
        )
        title = (
            f"{self.shape}'s shape, {self.format}, {self.activations}, {self.threads} threads, "
            f"{self.weight_bytes / 1e6:,.0f} MB of matrices a step"
        )
        note = "The read is of matrices and caches. The speed is that of calls in the same turn."
        return [Sheet(title, columns, rows, (note, SPREAD))]


def open_model(shape: Shape, target: TargetRecipe, kind: CacheKind, folder: Path) -> CallBench:
    """A model of random weights in `folder`, with caches of a kind."""
    recipe = Recipe(name="caches", target=target, caches=kind, prefill_chunk=CHUNK)
    folder.mkdir()
    plan = plan_without_weights(Model("target", config_of(shape), target, recipe, shape.context_length))
    entry = write_random_model(plan, folder).entry
    return CallBench(Reader(Session(folder, entry, shape.vocab_size, 1)))


def measure(
    shape: Shape,
    target: TargetRecipe,
    kinds: Sequence[CacheKind],
    tokens: Sequence[int],
    cached: Sequence[int],
    work: Path,
    repetitions: int,
    progress: Progress = silent,
) -> CachesResult:
    """Time calls of each of `tokens` after each of `cached` tokens; the models are written below `work`."""
    shape = replace(shape, context_length=max(cached) + max(tokens))
    benches = {kind: open_model(shape, target, kind, work / kind) for kind in kinds}
    ceiling = ReadCeiling(pieces_of_file(next((work / kinds[0]).glob("*.safetensors"))))

    def timed(case: Case) -> list[Pair]:
        kind, count, before = case
        bench = benches[kind]
        ids = bench.random_ids(count)
        read = bench.read_bytes(ids) + bench.entry.cache_bytes(before)
        return [Pair(bench.time_call(ids, count), read / ceiling.bytes_per_second()) for _ in repeated(2)]

    trials: dict[Case, list[list[Pair]]] = {}
    for before in sorted(cached):
        for kind, bench in benches.items():
            progress(f"filling {kind} caches with {before:,} tokens")
            bench.fill(before)
        cases = [(kind, count, before) for count, kind in itertools.product(tokens, kinds)]
        trials |= trials_of(cases, timed, repetitions, progress, label=lambda case: "{}, {} after {}".format(*case))
    return CachesResult(
        shape=shape.name,
        format=target.format,
        activations=target.activations,
        threads=ops.threads(),
        weight_bytes=read_bytes(benches[kinds[0]].entry),
        calls=tuple(_describe(case, trials, kinds[0], benches[case[0]]) for case in trials),
    )


def _describe(
    case: Case, trials: Mapping[Case, Sequence[Sequence[Pair]]], first: CacheKind, bench: CallBench
) -> CacheTimes:
    kind, tokens, cached = case
    seconds = {
        which: [median([p.seconds for p in pairs]) for pairs in trials[which]] for which in (case, (first, *case[1:]))
    }
    ratios = [other / own for own, other in zip(seconds[case], seconds[first, tokens, cached], strict=True)]
    return CacheTimes(
        kind=kind,
        tokens=tokens,
        cached=cached,
        cache_bytes=bench.entry.cache_bytes(cached),
        over_first=median(ratios),
        over_first_quartiles=quartiles(ratios),
        **dict(describe_pairs(trials[case])),
    )


@measurement
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="tinyllama-1.1b", show_default=True)
@format_option("mxfp6_e2m3")
@activations_option("int8")
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
def main(
    shape: str,
    weight_format: str,
    activations: Activations,
    kinds: tuple[CacheKind, ...],
    tokens: tuple[int, ...],
    cached: tuple[int, ...],
    repetitions: int,
    progress: Progress,
) -> CachesResult:
    """Time calls after many tokens with each kind of key-value caches, with random weights of a known shape."""
    check_activations(named_by_user(weight_format), activations)
    target = TargetRecipe(checkpoint=RANDOM, format=named_by_user(weight_format), activations=activations)
    with tempfile.TemporaryDirectory(prefix="mxspec-caches-") as work:
        return measure(SHAPES[shape], target, kinds, tokens, cached, Path(work), repetitions, progress)
