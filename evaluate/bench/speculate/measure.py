"""Does speculation pay, and as much as the formula says? Plain and speculative decoding alternating, for every K.

Leviathan et al. (2023), theorem 3.8, with the cost v of scoring K + 1 tokens in one call, over that of one step, in the
place of 1: speedup = (1 - a^(K+1)) / ((1 - a) (c K + v)). Each answer is compared with the formula for its own
acceptance, for as many tokens as each of its rounds drafted (the last drafts no more than is left to write, and text
drafters often fewer), and for c and v of its own rounds beside the plain rounds of the same prompt and
repetition. The rest is what the formula misses: a rejection makes the next one likelier, and there is time outside the
models.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial

from mxspec.evaluate.bench.harness import alternate
from mxspec.evaluate.bench.medians import Percentiles, median, median_ratio
from mxspec.evaluate.bench.speculate.bench import Run, SpeculateBench
from mxspec.evaluate.bench.speculate.result import (
    ANSWER_TOKENS,
    Encoded,
    Measured,
    MeasuredK,
    OfDrafter,
    Plain,
    SpeculateResult,
    Turns,
    TurnsTrial,
)
from mxspec.evaluate.progress import Progress, silent
from mxspec.runtime import ops
from mxspec.runtime.request import K


def measure(
    bench: SpeculateBench,
    ks: Sequence[K],
    repetitions: int,
    drafters: Sequence[str] = ("model",),
    progress: Progress = silent,
) -> SpeculateResult:
    """All drafters and K alternating for each prompt and repetition, plain decoding first; medians over the pairs."""
    choices: list[tuple[str, K]] = [(drafter, k) for drafter in drafters for k in ks]
    costs = []

    def begin(repetition: int) -> None:
        if bench.has_draft:
            costs.append(bench.costs())
        if bench.guided is not None:
            bench.guided.seed = repetition

    variants = [partial(_write, bench, k=k, drafter=drafter) for drafter, k in (("none", 0), *choices)]
    turns = alternate(variants, range(len(bench.prompts)), repetitions, progress, begin=begin)
    plain, *written = zip(*(turn.answers for turn in turns), strict=True)
    runs = dict(zip(choices, written, strict=True))
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
        turns=_turns(costs) if costs else None,
        encoded=_encoded(bench, plain),
        drafters={
            drafter: OfDrafter(
                rows=tuple(measured_at(k, plain, runs[drafter, k]) for k in ks if k != "auto"),
                auto=measured(plain, runs[drafter, "auto"]) if "auto" in ks else None,
            )
            for drafter in drafters
        },
    )


def _write(bench: SpeculateBench, prompt: int, repetition: int, *, k: K, drafter: str) -> Run:
    return bench.run(prompt, k, drafter)


def _encoded(bench: SpeculateBench, plain: Sequence[Run]) -> Encoded | None:
    """The medians of the lengths and seconds of the sources that were read; None without any."""
    runs = [(len(bench.prompts[i % len(bench.prompts)]), run) for i, run in enumerate(plain) if run.encode_seconds > 0]
    if not runs:
        return None
    seconds = median([run.encode_seconds for _, run in runs])
    answer = _answer_seconds(plain).median
    return Encoded(
        source_tokens=int(median([tokens for tokens, _ in runs])),
        seconds=seconds,
        share=seconds / (seconds + answer),
    )


def _turns(trials: Sequence[TurnsTrial]) -> Turns:
    turns, alone = [trial.turns_seconds for trial in trials], [trial.alone_seconds for trial in trials]
    target, draft = [step.target for step in turns], [step.draft for step in turns]
    target_alone, draft_alone = [step.target for step in alone], [step.draft for step in alone]
    both, both_alone = list(map(operator.add, target, draft)), list(map(operator.add, target_alone, draft_alone))
    return Turns(
        target_seconds=median(target),
        draft_seconds=median(draft),
        target_over_alone=median_ratio(target, target_alone),
        draft_over_alone=median_ratio(draft, draft_alone),
        over_alone=median_ratio(both, both_alone),
        trials=tuple(trials),
    )


def measured_at(k: int, plain: Sequence[Run], runs: Sequence[Run]) -> MeasuredK:
    """Answers at K = k beside the plain ones of the same prompts and repetitions, and beside the formula."""
    pairs = _pairs(plain, runs)
    predicted = [_formula_of_rounds(run, v, before.target_seconds) for run, before, v in pairs]
    speedups = [_speedup(run, before) for run, before, _ in pairs]
    rounds = sum(len(run.rounds) for run, _, _ in pairs)
    return MeasuredK(
        k=k,
        ideal_tokens_per_round=sum(run.ideal_tokens for run, _, _ in pairs) / rounds,
        predicted=median(predicted),
        measured_over_predicted=median_ratio(speedups, predicted),
        **dict(measured(plain, runs)),
    )


def _formula_of_rounds(run: Run, v: float, step: float) -> float:
    """The expected speedup over plain decoding: ideal tokens a round over (c K + v)."""
    drafted = sum(r.drafted for r in run.rounds) / len(run.rounds)
    return run.ideal_tokens / len(run.rounds) / (run.draft_seconds / step * drafted + v)


def measured(plain: Sequence[Run], runs: Sequence[Run]) -> Measured:
    """Answers beside the plain ones of the same prompts and repetitions."""
    pairs = _pairs(plain, runs)
    rounds = [r for run, _, _ in pairs for r in run.rounds]
    evaluated, drafted = sum(r.evaluated for r in rounds), sum(r.drafted for r in rounds)
    models = sum(r.draft_seconds + r.target_seconds for r in rounds)
    speedups = tuple(_speedup(run, before) for run, before, _ in pairs)
    return Measured(
        acceptance=sum(r.accepted for r in rounds) / evaluated if evaluated else 0.0,
        drafted_per_round=drafted / len(rounds),
        c=median([run.draft_seconds / before.target_seconds for run, before, _ in pairs]),
        v=median([v for _, _, v in pairs]),
        tokens_per_round=sum(r.emitted for r in rounds) / len(rounds),
        speedup=median(speedups),
        outside_models=1 - models / sum(r.seconds for r in rounds),
        answer_seconds=_answer_seconds(runs),
        trials_speedup=speedups,
    )


def _pairs(plain: Sequence[Run], runs: Sequence[Run]) -> list[tuple[Run, Run, float]]:
    """Each answer, the plain one of the same prompt and repetition, and what a round's scoring costs over a step."""
    return [
        (run, before, run.target_seconds / before.target_seconds)
        for run, before in zip(runs, plain, strict=True)
        if run.rounds and before.rounds
    ]


def _speedup(run: Run, before: Run) -> float:
    return (before.seconds / before.emitted) / (run.seconds / run.emitted)


def _answer_seconds(runs: Sequence[Run]) -> Percentiles:
    return Percentiles.of([run.seconds / run.emitted * ANSWER_TOKENS for run in runs if run.emitted])
