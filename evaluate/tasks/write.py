"""Answer the same prompts in several ways, which alternate every few prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from mxspec.formats.errors import GenerationError
from mxspec.runtime.engine import Engine
from mxspec.runtime.handle import Answer
from mxspec.runtime.request import Request

PLAIN = "none"  # without speculation: the name of the drafter that never drafts
Advance = Callable[[int], None]


@dataclass(slots=True)
class TaskAnswers:
    """The answers of one way, in the order of the prompts, and their total time."""

    drafter: str
    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of tokens in all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def acceptance(self) -> float | None:
        """Accepted over evaluated guesses; None if nothing was guessed."""
        evaluated = sum(answer.statistics.evaluated for answer in self.answers)
        return sum(answer.statistics.accepted for answer in self.answers) / evaluated if evaluated else None


def write_ways(
    engine: Engine, prompts: Sequence[Sequence[int]], drafters: Iterable[str], settings: Request, advance: Advance
) -> list[TaskAnswers]:
    """Write the answers in every way; `advance` gets the number of new answers. Raises GenerationError.

    A seed in the `settings` is that of the first prompt.
    """
    ways = [TaskAnswers(drafter) for drafter in drafters]
    together = engine.target.slots
    for turn, begin in enumerate(range(0, len(prompts), together)):
        batch = list(enumerate(prompts))[begin : begin + together]
        for way in ways if turn % 2 == 0 else ways[::-1]:  # so that no way is always first
            requests = [_request(settings, ids, number, way.drafter) for number, ids in batch]
            start = time.perf_counter()
            answers = [handle.result() for handle in engine.submit_all(requests)]
            way.seconds += time.perf_counter() - start
            way.answers += answers
            advance(len(answers))
    return ways


def _request(settings: Request, ids: Sequence[int], number: int, drafter: str) -> Request:
    """The request for prompt `number`; the ways do not share their prefix caches."""
    seed = None if settings.seed is None else settings.seed + number
    return replace(
        settings, prompt=ids, seed=seed, drafter=drafter, k=0 if drafter == PLAIN else None, cache_key=drafter
    )


def fit(engine: Engine, text: str, max_new_tokens: int) -> tuple[list[int], bool]:
    """Ids of a prompt that leaves room for an answer, and whether the prompt was cut. Raises GenerationError."""
    room = engine.target.capacity - max_new_tokens
    if room < 1:
        raise GenerationError(
            "--max-new-tokens", f"got {max_new_tokens}, expected fewer than {engine.target.capacity}, the context"
        )
    ids = engine.encode(text)
    if engine.target.encoder is not None:  # a source loses its end, except the tokenizer's last token
        room = engine.prompt_capacity
        return (ids, False) if len(ids) <= room else ([*ids[: room - 1], ids[-1]], True)
    return ids[-room:], len(ids) > room
