"""Requests to both programs, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

K = int | Literal["auto"]  # tokens drafted in a round; only mxspec has "auto", chosen for each round by cost


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer to one prompt."""

    tokens: tuple[int, ...]
    seconds: float  # from the first token to the last one
    drafted: int = 0
    accepted: int = 0


class Writer(Protocol):
    """An open model."""

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer: ...


class Program(Protocol):
    """A model with or without a draft in one of the two programs; it is open only while it is timed."""

    def open(self) -> AbstractContextManager[Writer]: ...
