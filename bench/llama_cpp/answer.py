"""What both programs are asked for, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

K = int | Literal["auto"]  # tokens drafted in a round; "auto" is chosen for each round by what it costs, which is ours


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer to one prompt."""

    tokens: tuple[int, ...]
    seconds: float  # from the first token to the last
    drafted: int = 0
    accepted: int = 0


class Writer(Protocol):
    """A model that is open."""

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer: ...


class Program(Protocol):
    """A model with or without a draft, as one of the two programs runs it; opened for as long as it is timed."""

    def open(self) -> AbstractContextManager[Writer]: ...
