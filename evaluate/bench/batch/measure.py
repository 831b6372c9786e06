"""Many texts at once: the engine's speed compared with its calls alone, and the time that a second turn saves."""

from __future__ import annotations

import numpy as np

from mxspec.evaluate.bench.batch import bench as texts_bench
from mxspec.evaluate.bench.batch.bench import TEXTS, BatchBench
from mxspec.evaluate.bench.batch.result import BatchResult, SecondTurn, Shaping, TextsTimes, Trials
from mxspec.evaluate.bench.harness import alternate, seconds_of
from mxspec.evaluate.bench.medians import median, median_ratio
from mxspec.evaluate.progress import Progress, silent
from mxspec.runtime import ops
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape

KS = (0, 1, 2, 3, 4)
NUCLEUS, VOCABULARY = 1000, 152_064  # entries of the row that is shaped
PAIRS = 3  # times that the bare loop and the engine alternate in a repetition


def shaping_seconds() -> float:
    """Median seconds of shaping one row by temperature and top-p, with a nucleus of about NUCLEUS entries."""
    rng = np.random.default_rng(0)
    logits = (2.0 * rng.standard_normal(VOCABULARY)).astype(np.float32)
    logits[rng.choice(VOCABULARY, NUCLEUS, replace=False)] += 9
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=0)
    return median([seconds_of(lambda: shape(logits, sampling)) for _ in range(100)])


def measure(bench: BatchBench, repetitions: int, progress: Progress = silent) -> BatchResult:
    """Measure every number of texts once in each repetition; medians, and every trial."""
    trials = {texts: Trials(texts) for texts in TEXTS}
    turns: list[tuple[float, float]] = []
    shaping: list[float] = []
    for repetition in range(repetitions):
        bench.guided.seed = repetition
        for texts, found in trials.items():
            progress(f"repetition {repetition + 1} of {repetitions}: {texts} texts")
            _repeat(bench, found)
        turns.append(bench.second_turn())
        shaping.append(shaping_seconds())
    shaping_median = median(shaping)
    return BatchResult(
        bundle=bench.engine.bundle.path.name,
        threads=ops.threads(),
        cached=texts_bench.CACHED,
        new_tokens=bench.new_tokens,
        rows=tuple(_row(found, trials[1]) for found in trials.values()),
        second_turn=SecondTurn(
            tokens=texts_bench.TURN,
            seconds=median([second for second, _ in turns]),
            whole_seconds=median([whole for _, whole in turns]),
            ratio=median([second / whole for second, whole in turns]),
            trials=tuple(turns),
        ),
        shaping=Shaping(
            vocabulary=VOCABULARY,
            nucleus=NUCLEUS,
            seconds_a_row=shaping_median,
            share_of_a_step=max(TEXTS) * shaping_median / median(trials[max(TEXTS)].call_seconds),
        ),
    )


def _repeat(bench: BatchBench, found: Trials) -> None:
    found.call_seconds.append(bench.call_seconds(found.texts))
    done = bench.plain(found.texts)
    if found.texts == 1:  # they alternate, because the machine's speed changes
        rates = (lambda texts, _: bench.loop(), lambda texts, _: bench.plain(texts).tokens_per_second)
        loop, engine = zip(*(turn.answers for turn in alternate(rates, [1], PAIRS)), strict=True)
        found.time_over_plain_loop.append(median_ratio(loop, engine))
    found.tokens_per_second.append(done.tokens_per_second)
    found.outside_models.append(1 - done.model_seconds / done.seconds)
    sampled = bench.write(found.texts, temperature=0.8, top_p=0.5, seed=0)
    found.outside_models_sampled.append(1 - sampled.model_seconds / sampled.seconds)
    for k in (*KS, "auto"):
        done = bench.speculative(found.texts, k)
        found.tokens_per_second_by_k.setdefault(str(k), []).append(done.tokens_per_second)


def _row(found: Trials, one: Trials) -> TextsTimes:
    by_k = {k: median(values) for k, values in found.tokens_per_second_by_k.items()}
    best = max((k for k in by_k if k != "auto"), key=lambda k: by_k[k])
    by_load = found.tokens_per_second_by_k["auto"]
    return TextsTimes(
        texts=found.texts,
        call_seconds=median(found.call_seconds),
        tokens_per_second=median(found.tokens_per_second),
        over_one_text=median_ratio(found.tokens_per_second, one.tokens_per_second),
        of_what_the_call_allows=median(
            [
                rate * seconds / found.texts
                for rate, seconds in zip(found.tokens_per_second, found.call_seconds, strict=True)
            ]
        ),
        outside_models=median(found.outside_models),
        outside_models_sampled=median(found.outside_models_sampled),
        time_over_plain_loop=median(found.time_over_plain_loop) if found.time_over_plain_loop else None,
        best_k=int(best),
        tokens_per_second_by_k=by_k,
        by_load_over_best_k=median_ratio(by_load, found.tokens_per_second_by_k[best]),
        by_load_over_plain=median_ratio(by_load, found.tokens_per_second_by_k["0"]),
        trials=found,
    )
