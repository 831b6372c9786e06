"""Parity: the same greedy ids with speculation as without, then scores that do not differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mxspec.evaluate.options import Count
from mxspec.evaluate.tasks.result import Interval, Scores, TaskFound, TaskParity, Way
from mxspec.evaluate.tasks.sandbox import isolation
from mxspec.evaluate.tasks.scores import FEWEST_ITEMS, bootstrap_mean, paired_p_value
from mxspec.evaluate.tasks.task import Row, Task
from mxspec.evaluate.tasks.write import PLAIN, Settings, Written, fit, write_ways
from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine
from mxspec.runtime.handle import Answer


@dataclass(frozen=True, slots=True)
class Job:
    """A file of rows of one kind of task."""

    task: Task
    file: Path
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.task.kind} ({self.file.name})"


@dataclass(frozen=True, slots=True)
class Asked:
    """Beside the tasks: who drafts, and how much is sampled. A temperature of 0 samples nothing."""

    drafters: tuple[str, ...]
    temperature: float
    seeds: int
    confidence: float
    run_code: bool
    max_new_tokens: int | None = None


def check_parity(engine: Engine, jobs: Sequence[Job], asked: Asked, progress: Count) -> TaskParity:
    """Write all answers, compare and score them. The confidence holds for all tasks together (Bonferroni).

    Raises MxspecError for a drafter that the bundle does not have, prompts without room and packages that are missing.
    """
    if asked.temperature and not asked.run_code and all(job.task.runs_code for job in jobs):
        raise MxspecError("--temperature: sampled code is compared by running it: give --run-code")
    level = 1 - (1 - asked.confidence) / len(jobs)
    tasks, reasons = [], []
    for job in jobs:
        found = _check(engine, job, asked, level, progress)
        tasks.append(found)
        reasons += _reasons(found, job.name, level)
    ran_code = asked.run_code and any(job.task.runs_code for job in jobs)
    return TaskParity(
        bundle=engine.bundle.manifest.name,
        slots=engine.target.slots,
        confidence=asked.confidence,
        level=level,
        isolation=isolation() if ran_code else None,
        tasks=tuple(tasks),
        reasons=tuple(reasons),
        passed=not reasons,
    )


def _check(engine: Engine, job: Job, asked: Asked, level: float, progress: Count) -> TaskFound:
    task = job.task
    settings = Settings(task.stops, asked.max_new_tokens or task.max_new_tokens)
    fitted = [fit(engine, task.prompt(row), settings.max_new_tokens) for row in job.rows]
    prompts = [ids for ids, _ in fitted]
    scored = asked.run_code or not task.runs_code
    sampled = scored and asked.temperature > 0
    main = asked.drafters[0]
    total = len(prompts) * (1 + len(asked.drafters) + (2 * asked.seeds if sampled else 0))
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(f"answering {job.name}", done, total)

    plain, *drafted = write_ways(engine, prompts, (PLAIN, *asked.drafters), settings, advance)
    scorer = _Scorer(job)
    scores = []
    if scored:
        scores.append(_compare(scorer, [(plain, drafted[0])], 0.0, level))
    if sampled:
        pairs = []
        for seed in range(asked.seeds):
            own = replace(settings, temperature=asked.temperature, seed=seed * len(prompts))
            one, other = write_ways(engine, prompts, (PLAIN, main), own, advance)
            pairs.append((one, other))
        scores.append(_compare(scorer, pairs, asked.temperature, level))
    return TaskFound(
        kind=task.kind,
        file=job.file.name,
        metric=task.metric,
        items=len(prompts),
        max_new_tokens=settings.max_new_tokens,
        cut_prompts=sum(cut for _, cut in fitted),
        ways=(_way(plain, plain), *(_way(way, plain) for way in drafted)),
        scores=tuple(scores),
    )


class _Scorer:
    """The worth of answers; an answer that came before is not scored again."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[tuple[int, str], float] = {}

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        return [self._score(number, answer.text) for number, answer in enumerate(answers)]

    def _score(self, number: int, text: str) -> float:
        if (number, text) not in self._known:
            self._known[number, text] = self._job.task.score(self._job.rows[number], text)
        return self._known[number, text]


def _compare(scorer: _Scorer, pairs: Sequence[tuple[Written, Written]], temperature: float, level: float) -> Scores:
    """Means over seeds are the items' scores: what seeds and items add to the spread are both in theirs."""
    plain = np.mean([scorer(one.answers) for one, _ in pairs], axis=0)
    speculating = np.mean([scorer(other.answers) for _, other in pairs], axis=0)
    return Scores(
        temperature=temperature,
        seeds=len(pairs),
        speculating=bootstrap_mean(speculating, level),
        plain=bootstrap_mean(plain, level),
        difference=bootstrap_mean(speculating - plain, level),
        p_value=paired_p_value(speculating, plain),
    )


def _way(way: Written, plain: Written) -> Way:
    differences = [
        _first_difference(number, one.token_ids, other.token_ids)
        for number, (one, other) in enumerate(zip(plain.answers, way.answers, strict=True), 1)
        if one.token_ids != other.token_ids
    ]
    return Way(
        drafter=way.drafter,
        tokens=way.tokens,
        seconds=way.seconds,
        acceptance=way.acceptance,
        different=len(differences),
        first_difference=differences[0] if differences else None,
    )


def _first_difference(number: int, plain: Sequence[int], drafted: Sequence[int]) -> str:
    shorter = min(len(plain), len(drafted))
    place = next((at for at in range(shorter) if plain[at] != drafted[at]), shorter)
    got, expected = (str(ids[place]) if place < len(ids) else "the end" for ids in (drafted, plain))
    return f"item {number}, token {place + 1}: got {got}, expected {expected}"


def _reasons(found: TaskFound, name: str, level: float) -> list[str]:
    """Why the task fails: ids that differ, scores that do, or too few items to say so."""
    reasons = [
        f"{name} with drafter {way.drafter}: {way.different} of {found.items} greedy answers differ: "
        f"{way.first_difference}"
        for way in found.ways
        if way.different
    ]
    for scores in found.scores:
        if scores.temperature and found.items < FEWEST_ITEMS:
            reasons.append(f"{name}: {found.items} items are too few to compare samples, at least {FEWEST_ITEMS}")
        elif _excludes_zero(scores.difference) and scores.p_value < 1 - level:
            between = f"{scores.difference.low:.4f} to {scores.difference.high:.4f}"
            reasons.append(f"{name}: {found.metric} with less without speculation: interval {between} excludes 0")
    return reasons


def _excludes_zero(interval: Interval) -> bool:
    return interval.low > 0 or interval.high < 0
