"""How everything here is timed: what is compared alternates, so that a slow minute of the machine meets all of it.

Trials become medians, quartiles and percentiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.options import Progress, silent
from mxspec.evaluate.result import Value

Prompt = TypeVar("Prompt")
Answer = TypeVar("Answer")
Case = TypeVar("Case")


def alternate(
    variants: Sequence[Callable[[Prompt, int], Answer]],
    prompts: Sequence[Prompt],
    repetitions: int,
    progress: Progress = silent,
    *,
    warm: bool = False,
) -> Iterator[tuple[int, int, tuple[Answer, ...]]]:
    """Yield the numbers of repetition and prompt, and what each variant, which gets prompt and repetition, answers.

    With `warm`, a repetition -1 of the first prompt teaches the engine what calls cost; it is not counted.
    """
    for repetition in range(-1 if warm else 0, repetitions):
        for number, prompt in enumerate(prompts if repetition >= 0 else prompts[:1]):
            progress(f"repetition {repetition + 1} of {repetitions}, prompt {number + 1} of {len(prompts)}")
            answers = tuple([variant(prompt, repetition) for variant in variants])
            if repetition >= 0:
                yield repetition, number, answers


def trials_of(
    cases: Sequence[Case],
    trial: Callable[[Case], Answer],
    repetitions: int,
    progress: Progress = silent,
    *,
    label: Callable[[Case], str] = str,
    warm: bool = False,
    both_ways: bool = False,
) -> dict[Case, list[Answer]]:
    """Try each case once in each repetition; the trials of each.

    `label` names a case in the progress. With `warm`, a first repetition is not counted. With `both_ways`, every other
    repetition begins with the last case, so that no case always follows the same one.
    """
    found: dict[Case, list[Answer]] = {case: [] for case in cases}
    for repetition in range(-1 if warm else 0, repetitions):
        for case in cases if repetition % 2 == 0 or not both_ways else cases[::-1]:
            progress(f"repetition {repetition + 1} of {repetitions}: {label(case)}")
            answer = trial(case)
            if repetition >= 0:
                found[case].append(answer)
    return found


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def same_texts(plain: object, guessed: object) -> None:
    """Greedy texts do not depend on drafting; where they do, the engine is wrong."""
    assert plain == guessed, "speculative text differs from plain text"


Quartiles = tuple[float, float]
Values = Sequence[float] | NDArray[np.float64]


def median(values: Values) -> float:
    return float(np.median(values))


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios of trials that belong together."""
    return median([a / b for a, b in zip(over, under, strict=True)])


def percentile(values: Values, percent: float) -> float:
    """The value that `percent` of 100 values do not exceed."""
    return float(np.percentile(values, percent))


def quartiles(values: Values) -> Quartiles:
    """The two values that the middle half lies between."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


class Percentiles(Value):
    """Seconds."""

    median: float
    p90: float
    p99: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        middle, high, highest = np.percentile(values, (50, 90, 99)).tolist()
        return cls(median=middle, p90=high, p99=highest)
