"""Does speculation pay, and as much as the formula says? Plain and speculative decoding alternating, for every K.

Leviathan et al. (2023), theorem 3.8, with the cost v of scoring K + 1 tokens in one call, over that of one step, in the
place of 1: speedup = (1 - a^(K+1)) / ((1 - a) (c K + v)). c and v are those of the rounds themselves, beside the plain
rounds of the same prompt and repetition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mxspec.evaluate.bench.speculate.bench import Run, SpeculateBench
from mxspec.evaluate.bench.speculate.result import (
    ANSWER_TOKENS,
    AnswerSeconds,
    Measured,
    MeasuredK,
    OfDrafter,
    Plain,
    SpeculateResult,
    Turns,
    TurnsTrial,
)
from mxspec.runtime import ops
from mxspec.runtime.choose_k import expected_tokens
from mxspec.runtime.request import K


def formula(acceptance: float, k: int, c: float, v: float) -> float:
    """The expected speedup over plain decoding."""
    return expected_tokens(acceptance, k) / (c * k + v)


def measure(
    bench: SpeculateBench,
    ks: Sequence[int],
    repetitions: int,
    drafters: Sequence[str] = ("model",),
    progress: Callable[[str], object] = lambda text: None,
) -> SpeculateResult:
    """All drafters and K alternating for each prompt and repetition, plain decoding first; medians over the pairs."""
    every: list[K] = [*ks, "auto"]
    choices = [(drafter, k) for drafter in drafters for k in every]
    plain: list[Run] = []
    runs: dict[tuple[str, K], list[Run]] = {choice: [] for choice in choices}
    costs = []
    for repetition in range(repetitions):
        costs.append(bench.costs())
        bench.guided.seed = repetition
        for prompt in range(len(bench.prompts)):
            progress(f"repetition {repetition + 1} of {repetitions}, prompt {prompt + 1} of {len(bench.prompts)}")
            plain.append(bench.run(prompt, 0))
            for drafter, k in choices:
                runs[drafter, k].append(bench.run(prompt, k, drafter))
    return SpeculateResult(
        bundle=bench.engine.bundle.path.name,
        threads=ops.threads(),
        new_tokens=bench.new_tokens,
        prompts=len(bench.prompts),
        imposed_acceptance=bench.acceptance,
        plain=Plain(
            seconds_per_token=sum(run.seconds for run in plain) / sum(run.emitted for run in plain),
            answer_seconds=_answer_seconds(plain),
        ),
        turns=_turns(costs),
        drafters={
            drafter: OfDrafter(
                rows=tuple(_row(k, plain, runs[drafter, k]) for k in ks),
                auto=_measured(plain, runs[drafter, "auto"]),
            )
            for drafter in drafters
        },
    )


def _turns(trials: Sequence[TurnsTrial]) -> Turns:
    target = [(trial.turns_seconds.target, trial.alone_seconds.target) for trial in trials]
    draft = [(trial.turns_seconds.draft, trial.alone_seconds.draft) for trial in trials]
    both = [(a + b, c + d) for (a, c), (b, d) in zip(target, draft, strict=True)]
    return Turns(
        target_seconds=statistics.median(turns for turns, _ in target),
        draft_seconds=statistics.median(turns for turns, _ in draft),
        target_over_alone=_median_ratio(target),
        draft_over_alone=_median_ratio(draft),
        over_alone=_median_ratio(both),
        trials=tuple(trials),
    )


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(over / under for over, under in pairs)


def _row(k: int, plain: Sequence[Run], runs: Sequence[Run]) -> MeasuredK:
    found = _measured(plain, runs)
    predicted = formula(found.acceptance, k, found.c, found.v)
    return MeasuredK(
        k=k,
        ideal_tokens_per_round=expected_tokens(found.acceptance, k),
        predicted=predicted,
        measured_over_predicted=found.speedup / predicted,
        **dict(found),
    )


def _measured(plain: Sequence[Run], runs: Sequence[Run]) -> Measured:
    rounds = [r for run in runs for r in run.rounds]
    evaluated, drafted = sum(r.evaluated for r in rounds), sum(r.drafted for r in rounds)
    draft_seconds = sum(r.draft_seconds for r in rounds)
    models = draft_seconds + sum(r.target_seconds for r in rounds)
    speedups = tuple(_speedups(plain, runs))
    step = statistics.median(run.target_seconds for run in plain if run.rounds)
    beside = [(run, before) for run, before in zip(runs, plain, strict=True) if run.rounds and before.rounds]
    return Measured(
        acceptance=sum(r.accepted for r in rounds) / evaluated if evaluated else 0.0,
        drafted_per_round=drafted / len(rounds),
        c=draft_seconds / drafted / step if drafted else 0.0,
        v=statistics.median(run.target_seconds / before.target_seconds for run, before in beside),
        tokens_per_round=sum(r.emitted for r in rounds) / len(rounds),
        speedup=statistics.median(speedups),
        outside_models=1 - models / sum(r.seconds for r in rounds),
        answer_seconds=_answer_seconds(runs),
        trials_speedup=speedups,
    )


def _answer_seconds(runs: Sequence[Run]) -> AnswerSeconds:
    trials = [run.seconds / run.emitted * ANSWER_TOKENS for run in runs if run.emitted]
    median, high = np.percentile(trials, (50, 90)).tolist()
    return AnswerSeconds(median=median, p90=high)


def _speedups(plain: Sequence[Run], runs: Sequence[Run]) -> Iterator[float]:
    """Speedup of each answer over the plain one of the same prompt and repetition."""
    for before, after in zip(plain, runs, strict=True):
        if before.emitted and after.emitted:
            yield (before.seconds / before.emitted) / (after.seconds / after.emitted)
