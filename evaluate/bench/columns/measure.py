"""fp16, the packed target, and the packed target with speculation: the comparison that mxspec is for, measured.

One bundle (`speccompile --with-baseline`), in one run. The columns alternate at every prompt, so a slow minute of the
machine slows all of them, and each answer is compared with the first column's answer to the same prompt.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.evaluate.bench.columns.result import ColumnResult, ColumnsResult, ColumnTrial
from mxspec.evaluate.bench.energy import EnergyMeter
from mxspec.evaluate.bench.harness import alternate
from mxspec.evaluate.bench.medians import Percentiles, median, median_ratio
from mxspec.evaluate.bench.memory import anonymous_bytes
from mxspec.evaluate.bench.read_ceiling import ReadCeiling, pieces_of_file
from mxspec.evaluate.bench.speculate.result import ANSWER_TOKENS
from mxspec.evaluate.progress import Progress, silent
from mxspec.runtime import ops
from mxspec.runtime.columns import ComparedEngine, Recording, write_column
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.weight_reads import read_bytes
from mxspec.runtime.request import Request

READS = 3  # plain reads of a model's weights after each answer


@dataclass(frozen=True, slots=True)
class Trial:
    """An answer, its energy, and the machine's read speed right after it."""

    recording: Recording
    joules: float | None
    read_bytes_per_second: float


def measure(
    columns: Sequence[ComparedEngine],
    prompts: Sequence[Sequence[int]],
    settings: dict[str, Any],
    repetitions: int,
    progress: Progress = silent,
) -> ColumnsResult:
    """Have all columns answer all prompts, alternating. `settings` are fields of a Request, with max_new_tokens."""
    ceilings = [ReadCeiling(pieces_of_file(_weights_file(column))) for column in columns]

    def variant(column: ComparedEngine, ceiling: ReadCeiling) -> Callable[[Sequence[int], int], Trial]:
        def write(prompt: Sequence[int], repetition: int) -> Trial:
            meter = EnergyMeter()
            recording = write_column(column, Request(prompt=prompt, cache_key=str(repetition), **settings))
            joules = meter.joules()
            return Trial(recording, joules, median([ceiling.bytes_per_second() for _ in range(READS)]))

        return write

    turns = list(alternate(list(map(variant, columns, ceilings)), prompts, repetitions, progress, warm=True))
    trials = list(zip(*(turn.answers for turn in turns), strict=True))
    places = [(turn.prompt, turn.repetition) for turn in turns]
    plain, last = ([trial.recording.answer.token_ids for trial in found] for found in trials[-2:])
    statistics = trials[-1][0].recording.answer.statistics
    return ColumnsResult(
        bundle=columns[-1].engine.bundle.path.name,
        threads=ops.threads(),
        prompts=len(prompts),
        new_tokens=settings["max_new_tokens"],
        temperature=settings["temperature"],
        k=statistics.k,
        drafter=statistics.drafter,
        verifier=statistics.verifier,
        read_bytes_per_second=median([trial.read_bytes_per_second for trial in trials[-1]]),
        anonymous_bytes=anonymous_bytes(),
        same_texts=sum(map(operator.eq, plain, last)),
        columns=[_describe(column, found, trials[0], places) for column, found in zip(columns, trials, strict=True)],
    )


def _describe(
    column: ComparedEngine, trials: Sequence[Trial], first: Sequence[Trial], places: Sequence[tuple[int, int]]
) -> ColumnResult:
    rounds = [r for trial in trials for r in trial.recording.rounds]
    counted = [_counted(column, trial, *place) for trial, place in zip(trials, places, strict=True)]
    rates, before = [_rate(trial) for trial in trials], [_rate(trial) for trial in first]
    seconds = sum(one.decode_seconds for one in counted)
    speed = sum(one.read_bytes for one in counted) / seconds
    evaluated, joules = sum(r.evaluated for r in rounds), [trial.joules for trial in trials]
    return ColumnResult(
        column=column.title,
        weights_bytes=_read_bytes(column.engine.target)
        + (_read_bytes(column.engine.draft) if column.speculates else 0),
        tokens_per_second=median(rates),
        over_first=median_ratio(rates, before),
        first_token_seconds=Percentiles.of([trial.recording.first_token_seconds for trial in trials]),
        token_seconds=Percentiles.of([r.seconds / r.emitted for r in rounds for _ in range(r.emitted)]),
        answer_seconds=Percentiles.of([ANSWER_TOKENS / rate for rate in rates]),
        acceptance=sum(r.accepted for r in rounds) / evaluated if evaluated else None,
        tokens_per_round=sum(r.emitted for r in rounds) / len(rounds),
        bytes_per_second=speed,
        share_of_read=speed / median([trial.read_bytes_per_second for trial in trials]),
        joules_per_token=_mean_joules(joules, [one.tokens + 1 for one in counted]),
        trials=counted,
    )


def _counted(column: ComparedEngine, trial: Trial, prompt: int, repetition: int) -> ColumnTrial:
    rounds = trial.recording.rounds
    drafted = sum(r.drafted for r in rounds)
    read = sum(_read_bytes(column.engine.target, r.drafted + 1) for r in rounds)
    read += drafted * _read_bytes(column.engine.draft)
    return ColumnTrial(
        prompt=prompt,
        repetition=repetition,
        first_token_seconds=trial.recording.first_token_seconds,
        decode_seconds=sum(r.seconds for r in rounds),
        tokens=sum(r.emitted for r in rounds),
        rounds=len(rounds),
        drafted=drafted,
        evaluated=sum(r.evaluated for r in rounds),
        accepted=sum(r.accepted for r in rounds),
        read_bytes=read,
        joules=trial.joules,
    )


def _rate(trial: Trial) -> float:
    """Tokens a second after the first."""
    rounds = trial.recording.rounds
    return sum(r.emitted for r in rounds) / sum(r.seconds for r in rounds)


def _mean_joules(joules: Sequence[float | None], tokens: Sequence[int]) -> float | None:
    known = [value for value in joules if value is not None]
    return sum(known) / sum(tokens) if len(known) == len(joules) else None


def _weights_file(column: ComparedEngine) -> Path:
    return column.engine.bundle.path / column.engine.target.entry.weights


def _read_bytes(session: Session | None, tokens: int = 1) -> int:
    """Bytes of the matrices that a call of `tokens` tokens reads."""
    return 0 if session is None else read_bytes(session.entry, tokens)
