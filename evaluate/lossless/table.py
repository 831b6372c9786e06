"""A pair of eight words: the user's own models, asked once for every short text over eight tokens.

A word is followed by what the model makes of the prompt and the last few words; a longer past is forgotten, so that a
small table says all, and the probability of every text is known exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.manifest import ModelName
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.session import Part, Session
from mxspec.runtime.sampling.shape import Logits

WORDS = 8
ORDER = 2  # words that the next one depends on
PROMPT = [0, 1]  # of the texts over the table; no row depends on it
STALE = -1


@dataclass(frozen=True, slots=True)
class Table:
    """Logits float32[rows, words] after every text of up to ORDER words."""

    rows: Logits

    def after(self, words: Sequence[int]) -> Logits:
        """The row after a text."""
        last = words[-ORDER:] if len(words) > ORDER else words
        row: Logits = self.rows[_first(len(last)) + number_of(last)]
        return row


def _first(length: int) -> int:
    """Rows of shorter texts stand before."""
    return int((WORDS**length - 1) // (WORDS - 1))


def number_of(words: Sequence[int]) -> int:
    """A text as a number of as many digits."""
    number = 0
    for word in words:
        number = number * WORDS + word
    return number


def score_tables(engine: Engine, prompt: list[int], source: Sequence[int] = ()) -> dict[ModelName, Table]:
    """The tables of target and draft; a draft that there is none of knows nothing."""
    words = choose_words(engine, prompt, source)
    tables: dict[ModelName, Table] = {"target": _score(engine, "target", prompt, source, words)}
    if engine.draft is not None:
        tables["draft"] = _score(engine, "draft", prompt, source, words)
    else:
        tables["draft"] = Table(np.zeros_like(tables["target"].rows))
    return tables


def choose_words(engine: Engine, prompt: list[int], source: Sequence[int] = ()) -> list[int]:
    """The likeliest tokens after the prompt, of both models by turns, so that both have some to expect."""
    vocab = engine.bundle.manifest.tokenizer.vocab_size
    lists = []
    for session in (engine.target, engine.draft):
        if session is not None:
            model: ModelName = engine.model if session is engine.target else "draft"
            row = list(engine.score(prompt, source=source or None, model=model))[-1][-1][:vocab]
            lists.append(np.argsort(-row, kind="stable")[: 2 * WORDS].tolist())
    mixed = [token for tokens in zip(*lists, strict=True) for token in tokens]
    return list(dict.fromkeys(mixed))[:WORDS]


def _score(engine: Engine, name: ModelName, prompt: list[int], source: Sequence[int], words: list[int]) -> Table:
    """Level by level, all words after one text in one call: each in a slot of its own."""
    session = Session.of(engine.bundle, name, WORDS)
    if source:
        session.encode([(slot, source) for slot in range(WORDS)])
    rows = [_read(session, prompt)[words]]
    rows += [row[words] for row in _after(session, len(prompt), words)]
    for first in words:
        session.run([Part(0, len(prompt), [first], 1)])
        for slot in range(1, WORDS):
            session.copy_prefix(0, slot, len(prompt) + 1)
        rows += [row[words] for row in _after(session, len(prompt) + 1, words)]
    return Table(np.stack(rows))


def _read(session: Session, prompt: list[int]) -> Logits:
    """The row after the prompt, which all slots hold then."""
    for first in range(0, len(prompt), session.chunk):
        piece = prompt[first : first + session.chunk]
        row: Logits = session.run([Part(0, first, piece, 1)])[0].copy()
    for slot in range(1, session.slots):
        session.copy_prefix(0, slot, len(prompt))
    return row


def _after(session: Session, length: int, words: list[int]) -> Logits:
    return session.run([Part(slot, length, [word], 1) for slot, word in enumerate(words)]).copy()


class TableSession:
    """Answers from a table, behind the interface of Session; a stale or skipped entry of a slot shows at once."""

    def __init__(self, table: Table, capacity: int, slots: int) -> None:
        self.capacity, self.slots, self.chunk, self.real_vocab = capacity, slots, capacity, WORDS
        self.source_capacity = 0
        self._table = table
        self._slots: list[list[int]] = [[STALE] * capacity for _ in range(slots)]

    def run(self, parts: Sequence[Part]) -> Logits:
        """float32[rows, words]."""
        rows: list[NDArray[Any]] = []
        for part in parts:
            end = part.past + len(part.tokens)
            cache = self._slots[part.slot]
            cache[part.past : end] = part.tokens
            cache[end:] = [STALE] * (self.capacity - end)
            assert STALE not in cache[:end], "an entry was read that nobody wrote"
            rows += [self._table.after(cache[len(PROMPT) : i]) for i in range(end - part.rows + 1, end + 1)]
        return np.stack(rows)

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        self._slots[destination][:length] = self._slots[source][:length]

    def release(self, slot: int) -> None:
        self._slots[slot] = [STALE] * self.capacity
