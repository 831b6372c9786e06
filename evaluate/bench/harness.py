"""Variants that alternate, so that a slow minute of the machine meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Prompt = TypeVar("Prompt")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Turn(Generic[Answer]):
    """What each variant made of one prompt, in their order; `prompt` is its number."""

    repetition: int
    prompt: int
    answers: tuple[Answer, ...]


def alternate(
    variants: Sequence[Callable[[Prompt, int], Answer]],
    prompts: Sequence[Prompt],
    repetitions: int,
    progress: Callable[[str], object] = lambda text: None,
    *,
    begin: Callable[[int], object] = lambda repetition: None,
    warm: bool = False,
) -> Iterator[Turn[Answer]]:
    """Have all variants answer each prompt; they get it and the number of the repetition.

    `begin` is called with the number of a repetition before it. With `warm`, a repetition -1 of the first prompt
    teaches the engine what calls cost, and is not counted.
    """
    for repetition in range(-1 if warm else 0, repetitions):
        begin(repetition)
        for number, prompt in enumerate(prompts if repetition >= 0 else prompts[:1]):
            progress(f"repetition {repetition + 1} of {repetitions}, prompt {number + 1} of {len(prompts)}")
            answers = tuple([variant(prompt, repetition) for variant in variants])
            if repetition >= 0:
                yield Turn(repetition, number, answers)


def same_texts(plain: object, guessed: object) -> None:
    """Greedy texts do not depend on drafting; where they do, the engine is wrong."""
    assert plain == guessed, "speculative text differs from plain text"
