"""One point of a sweep: the same prompts with and without speculation, alternating."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mxspec.evaluate.bench.batch.bench import Answered, write_together
from mxspec.evaluate.bench.harness import alternate, same_texts
from mxspec.evaluate.bench.medians import Percentiles, median
from mxspec.evaluate.bench.prompts import prompts_of
from mxspec.evaluate.bench.speculate.bench import Run
from mxspec.evaluate.bench.speculate.measure import measured, measured_at
from mxspec.evaluate.bench.sweep.result import Point, SweepPoint, SweepTrial
from mxspec.evaluate.progress import Progress, silent
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine

Pair = tuple[Answered, Answered]  # without drafting, and with


def measure(
    paths: dict[str, Path],
    points: Sequence[Point],
    text: str,
    prompts: int,
    new_tokens: int,
    repetitions: int,
    progress: Progress = silent,
) -> Iterator[SweepPoint]:
    """Yield each point as soon as it is measured. Raises MxspecError if the text is too short."""
    done, threads = 0, ops.threads()
    try:
        for (bundle, on, batch), group in itertools.groupby(points, lambda p: (p.bundle, p.threads, p.batch)):
            with Engine(paths[bundle], slots=batch, threads=on) as engine:
                token_ids = engine.encode(text)
                for point in group:
                    done += 1
                    shown = ", ".join(f"{name} {value}" for name, value in point)
                    progress(f"point {done} of {len(points)}: {shown}")
                    yield _point(engine, point, _sets(token_ids, point, prompts), new_tokens, repetitions)
    finally:
        ops.set_threads(threads)


def _sets(token_ids: Sequence[int], point: Point, prompts: int) -> list[list[list[int]]]:
    """Sets of prompts that are answered together: at least one set, and at least `prompts` prompts in all."""
    count = max(-(-prompts // point.batch), 1) * point.batch
    if len(token_ids) < point.context + count:
        raise MxspecError(
            f"--text: holds {len(token_ids):,} tokens, but {count} prompts of {point.context:,} tokens take at least "
            f"{point.context + count:,}"
        )
    found = prompts_of(token_ids, count, point.context)
    return [found[i : i + point.batch] for i in range(0, count, point.batch)]


def _point(
    engine: Engine, point: Point, sets: Sequence[list[list[int]]], new_tokens: int, repetitions: int
) -> SweepPoint:
    settings: dict[str, Any] = {"temperature": point.temperature, "max_new_tokens": new_tokens, "ignore_eos": True}
    guessing = {"k": point.k, "drafter": point.drafter} | ({"verifier": point.verifier} if point.temperature else {})
    repeatable = point.k != "auto" and engine.drafters[point.drafter].repeatable
    repeats = point.temperature and (repeatable or point.verifier == "match")  # where a seed means one text

    def variant(own: dict[str, Any]) -> Callable[[list[list[int]], int], Answered]:
        def write(prompts: list[list[int]], repetition: int) -> Answered:
            seeded = settings | ({"seed": repetition + 1} if repeats else {})
            return write_together(engine, prompts, len(prompts), seeded | own)

        return write

    pairs, trials = [], []
    variants = [variant({"k": 0, "drafter": "none"}), variant(guessing)]
    for turn in alternate(variants, sets, repetitions, warm=True):
        plain, guessed = turn.answers
        if not point.temperature:
            same_texts(plain.texts, guessed.texts)
        pairs.append((plain, guessed))
        trials.append(_trial(turn.prompt * point.batch, turn.repetition, plain, guessed))
    return _described(point, pairs, trials)


def _trial(prompt: int, repetition: int, plain: Answered, guessed: Answered) -> SweepTrial:
    return SweepTrial(
        prompt=prompt,
        repetition=repetition,
        texts=len(guessed.texts),
        tokens=guessed.tokens - len(guessed.texts),
        decode_seconds=sum(r.seconds for r in guessed.longest[1:]),
        plain_seconds=sum(r.seconds for r in plain.longest[1:]),
    )


def _described(point: Point, pairs: Sequence[Pair], trials: Sequence[SweepTrial]) -> SweepPoint:
    plain, runs = [Run(a.longest[1:]) for a, _ in pairs], [Run(b.longest[1:]) for _, b in pairs]
    beside = measured_at(point.k, plain, runs) if isinstance(point.k, int) else None
    costs = beside or measured(plain, runs)
    rounds = [r for _, guessed in pairs for text in guessed.rounds for r in text[1:]]
    evaluated, accepted = sum(r.evaluated for r in rounds), sum(r.accepted for r in rounds)
    positions = range(max(r.evaluated for r in rounds))
    return SweepPoint(
        **dict(point),
        tokens_per_second=median([trial.tokens_per_second for trial in trials]),
        plain_tokens_per_second=median([trial.plain_tokens_per_second for trial in trials]),
        speedup=median([trial.speedup for trial in trials]),
        predicted=beside.predicted if beside else None,
        acceptance=accepted / evaluated if evaluated else 0.0,
        tokens_per_round=sum(r.emitted for r in rounds) / len(rounds),
        c=costs.c,
        v=costs.v,
        answer_seconds=Percentiles.of([trial.answer_seconds for trial in trials]),
        plain_answer_seconds=Percentiles.of([trial.plain_answer_seconds for trial in trials]),
        evaluated_by_position=tuple(sum(r.evaluated > i for r in rounds) for i in positions),
        accepted_by_position=tuple(sum(r.accepted > i for r in rounds) for i in positions),
        trials=tuple(trials),
    )
