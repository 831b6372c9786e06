"""Have an engine answer the same prompts in several ways, a few prompts at a time and the ways alternating."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mxspec.formats.errors import GenerationError
from mxspec.runtime.engine import Engine
from mxspec.runtime.handle import Answer
from mxspec.runtime.request import Request

PLAIN = "none"  # without speculation, by the name of the drafter that does not draft
Advance = Callable[[int], None]


@dataclass(slots=True)
class TaskAnswers:
    """The answers of one way in the order of the prompts, and the time that they took together."""

    drafter: str
    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """In all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def acceptance(self) -> float | None:
        """Accepted of evaluated guesses; None where nothing was guessed."""
        evaluated = sum(answer.statistics.evaluated for answer in self.answers)
        return sum(answer.statistics.accepted for answer in self.answers) / evaluated if evaluated else None


@dataclass(frozen=True, slots=True)
class Settings:
    """How answers are written; `seed` is that of the first prompt where the temperature is above 0."""

    stops: tuple[str, ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0

    def request(self, ids: Sequence[int], number: int, drafter: str) -> Request:
        """Prompt `number`, written with a drafter; no way reads what another has read."""
        return Request(
            prompt=ids,
            max_new_tokens=self.max_new_tokens,
            stop=self.stops,
            temperature=self.temperature,
            seed=self.seed + number if self.temperature else None,
            drafter=drafter,
            k=0 if drafter == PLAIN else None,
            cache_key=drafter,
        )


def write_ways(
    engine: Engine, prompts: Sequence[Sequence[int]], drafters: Iterable[str], settings: Settings, advance: Advance
) -> list[TaskAnswers]:
    """Answers in every way; `advance` gets how many were written. Raises GenerationError."""
    ways = [TaskAnswers(drafter) for drafter in drafters]
    together = engine.target.slots
    for turn, begin in enumerate(range(0, len(prompts), together)):
        batch = list(enumerate(prompts))[begin : begin + together]
        for way in ways if turn % 2 == 0 else ways[::-1]:  # so that none is always the first
            requests = [settings.request(ids, number, way.drafter) for number, ids in batch]
            start = time.perf_counter()
            answers = [handle.result() for handle in engine.submit_all(requests)]
            way.seconds += time.perf_counter() - start
            way.answers += answers
            advance(len(answers))
    return ways


def fit(engine: Engine, text: str, max_new_tokens: int) -> tuple[list[int], bool]:
    """Ids of a prompt that leaves room for its answer, and whether some of it had to go. Raises GenerationError."""
    room = engine.target.capacity - max_new_tokens
    if room < 1:
        raise GenerationError(
            f"--max-new-tokens: got {max_new_tokens}, expected fewer than {engine.target.capacity}, the context"
        )
    ids = engine.encode(text)
    if engine.target.encoder is not None:  # a source loses its end, but for the token that the tokenizer puts there
        room = engine.prompt_capacity
        return (ids, False) if len(ids) <= room else ([*ids[: room - 1], ids[-1]], True)
    return ids[-room:], len(ids) > room
