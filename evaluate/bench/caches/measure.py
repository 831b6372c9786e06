"""Time calls after many tokens with each kind of key-value caches, alternating."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mxspec.compile.planning.plan import plan_without_weights
from mxspec.evaluate.bench.caches.result import CachesResult, CacheTimes
from mxspec.evaluate.bench.harness import trials_of
from mxspec.evaluate.bench.medians import median, quartiles
from mxspec.evaluate.bench.model.calls import CallBench, repeated
from mxspec.evaluate.bench.read_ceiling import Pair, ReadCeiling, describe_pairs, pieces_of_file
from mxspec.evaluate.bench.shapes.known import Shape
from mxspec.evaluate.bench.shapes.random_bundle import config_of, write_random_model
from mxspec.evaluate.progress import Progress, silent
from mxspec.formats.caches import CacheKind
from mxspec.recipes.recipe import Recipe, TargetRecipe
from mxspec.runtime import ops
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.weight_reads import read_bytes

CHUNK = 512  # tokens of a call that fills the caches
Case = tuple[CacheKind, int, int]  # kind, tokens of a call, cached tokens


def open_model(shape: Shape, target: TargetRecipe, kind: CacheKind, folder: Path) -> CallBench:
    """A model of random weights in `folder`, with caches of a kind."""
    recipe = Recipe(name="caches", target=target, caches=kind, prefill_chunk=CHUNK)
    folder.mkdir()
    plan = plan_without_weights("target", config_of(shape), target, recipe, shape.context_length)
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
        read = bench.read_bytes(ids) + bench.cache_bytes(before)
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
        cache_bytes=bench.cache_bytes(cached),
        over_first=median(ratios),
        over_first_quartiles=quartiles(ratios),
        **dict(describe_pairs(trials[case])),
    )
