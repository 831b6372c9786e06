"""Parity: compare answers with and without speculation, first the greedy ids, then the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from mxspec.evaluate.options import Count
from mxspec.evaluate.tasks.result import TaskFound, TaskParity, TaskScores, TaskWay
from mxspec.evaluate.tasks.sandbox import isolation
from mxspec.evaluate.tasks.scores import FEWEST_ITEMS, bootstrap_mean, paired_p_value
from mxspec.evaluate.tasks.task import Row, Task
from mxspec.evaluate.tasks.write import PLAIN, TaskAnswers, fit, write_ways
from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine
from mxspec.runtime.request import Request


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of rows of one kind of task."""

    task: Task
    path: Path
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """The name that users see."""
        return f"{self.task.kind} ({self.path.name})"


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """The drafters, and the number of sampled answers. With temperature 0 nothing is sampled."""

    drafters: tuple[str, ...]
    temperature: float
    seeds: int
    confidence: float
    run_code: bool
    max_new_tokens: int | None = None


def check_parity(engine: Engine, task_files: Sequence[TaskFile], options: ParityOptions, progress: Count) -> TaskParity:
    """Write, compare and score all answers. The confidence holds for all tasks together (Bonferroni).

    Raises MxspecError for a drafter that the bundle does not have, a prompt that leaves no room for an answer, and a
    missing package.
    """
    if options.temperature and not options.run_code and all(task_file.task.runs_code for task_file in task_files):
        raise MxspecError("--temperature: sampled code is compared by running it: give --run-code")
    level = 1 - (1 - options.confidence) / len(task_files)
    tasks, reasons = [], []
    for task_file in task_files:
        found = _check(engine, task_file, options, level, progress)
        tasks.append(found)
        reasons += _reasons(found, task_file.name, level)
    ran_code = options.run_code and any(task_file.task.runs_code for task_file in task_files)
    return TaskParity(
        bundle=engine.bundle.manifest.name,
        slots=engine.target.slots,
        confidence=options.confidence,
        level=level,
        isolation=isolation() if ran_code else None,
        tasks=tuple(tasks),
        reasons=tuple(reasons),
        passed=not reasons,
    )


def _check(engine: Engine, task_file: TaskFile, options: ParityOptions, level: float, progress: Count) -> TaskFound:
    task = task_file.task
    length = options.max_new_tokens or task.max_new_tokens
    settings = Request(prompt=(), stop=task.stops, max_new_tokens=length, temperature=0.0)
    fitted = [fit(engine, task.prompt(row), length) for row in task_file.rows]
    prompts = [ids for ids, _ in fitted]
    scored = options.run_code or not task.runs_code
    sampled = scored and options.temperature > 0
    main = options.drafters[0]
    total = len(prompts) * (1 + len(options.drafters) + (2 * options.seeds if sampled else 0))
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(f"answering {task_file.name}", done, total)

    plain, *drafted = write_ways(engine, prompts, (PLAIN, *options.drafters), settings, advance)
    score = cache(lambda number, answer: task.score(task_file.rows[number], answer))  # not twice for the same answer
    scores = []
    if scored:
        scores.append(_compare(score, [(plain, drafted[0])], 0.0, level))
    if sampled:
        pairs = []
        for seed in range(options.seeds):
            own = replace(settings, temperature=options.temperature, seed=seed * len(prompts))
            one, other = write_ways(engine, prompts, (PLAIN, main), own, advance)
            pairs.append((one, other))
        scores.append(_compare(score, pairs, options.temperature, level))
    return TaskFound(
        kind=task.kind,
        file=task_file.path.name,
        metric=task.metric,
        items=len(prompts),
        max_new_tokens=length,
        cut_prompts=sum(cut for _, cut in fitted),
        ways=(_way(plain, plain), *(_way(way, plain) for way in drafted)),
        scores=tuple(scores),
    )


Score = Callable[[int, str], float]
"""The score of the answer to a row, by the row's number."""


def _compare(
    score: Score, pairs: Sequence[tuple[TaskAnswers, TaskAnswers]], temperature: float, level: float
) -> TaskScores:
    """An item's score is its mean over seeds, so that the spread of these means comes from both seeds and items."""
    plain, speculating = (
        np.mean([[score(number, answer.text) for number, answer in enumerate(one.answers)] for one in ways], axis=0)
        for ways in zip(*pairs, strict=True)
    )
    return TaskScores(
        temperature=temperature,
        seeds=len(pairs),
        speculating=bootstrap_mean(speculating, level),
        plain=bootstrap_mean(plain, level),
        difference=bootstrap_mean(speculating - plain, level),
        p_value=paired_p_value(speculating, plain),
    )


def _way(way: TaskAnswers, plain: TaskAnswers) -> TaskWay:
    differences = [
        _first_difference(number, one.token_ids, other.token_ids)
        for number, (one, other) in enumerate(zip(plain.answers, way.answers, strict=True), 1)
        if one.token_ids != other.token_ids
    ]
    return TaskWay(
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
    """The reasons why the task fails: ids or scores that differ, or too few items to tell."""
    reasons = [
        f"{name} with drafter {way.drafter}: {way.different} of {found.items} greedy answers differ: "
        f"{way.first_difference}"
        for way in found.ways
        if way.different
    ]
    for scores in found.scores:
        if scores.temperature and found.items < FEWEST_ITEMS:
            reasons.append(f"{name}: {found.items} items are too few to compare samples, at least {FEWEST_ITEMS}")
        elif (scores.difference.low > 0 or scores.difference.high < 0) and scores.p_value < 1 - level:
            between = f"{scores.difference.low:.4f} to {scores.difference.high:.4f}"
            reasons.append(f"{name}: {found.metric} with less without speculation: interval {between} excludes 0")
    return reasons
