"""How everything here is timed: what is compared alternates, so that a slow minute of the machine meets all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mxspec.evaluate.progress import Progress, silent

Prompt = TypeVar("Prompt")
Answer = TypeVar("Answer")
Case = TypeVar("Case")


@dataclass(frozen=True, slots=True)
class Turn(Generic[Answer]):
    """What each variant made of one prompt, in the order of the variants; `prompt` is the prompt's number."""

    repetition: int
    prompt: int
    answers: tuple[Answer, ...]


def alternate(
    variants: Sequence[Callable[[Prompt, int], Answer]],
    prompts: Sequence[Prompt],
    repetitions: int,
    progress: Progress = silent,
    *,
    begin: Callable[[int], object] = lambda repetition: None,
    warm: bool = False,
) -> Iterator[Turn[Answer]]:
    """Have all variants answer each prompt; a variant gets the prompt and the number of the repetition.

    `begin` is called with the number of each repetition before it. With `warm`, a repetition -1 of the first prompt
    teaches the engine what calls cost; it is not counted.
    """
    for repetition in range(-1 if warm else 0, repetitions):
        begin(repetition)
        for number, prompt in enumerate(prompts if repetition >= 0 else prompts[:1]):
            progress(f"repetition {repetition + 1} of {repetitions}, prompt {number + 1} of {len(prompts)}")
            answers = tuple([variant(prompt, repetition) for variant in variants])
            if repetition >= 0:
                yield Turn(repetition, number, answers)


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
