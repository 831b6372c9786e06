"""How likely continuations are after their contexts: shared prefixes are read once, choices in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import common_prefix
from mxspec.runtime.sampling.shape import Logits

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The log-probability of a continuation in nats, and whether the model alone would write it."""

    logprob: float
    greedy: bool


@dataclass(slots=True)
class _Choice:
    """A continuation that is being read, in its own slot."""

    tokens: Tokens
    slot: int
    read: int = 0
    logprob: float = 0.0
    greedy: bool = True
    scored: int = 0

    def add(self, logits: Logits) -> None:
        """Score the next tokens; float32[rows, vocab] are the logits before each."""
        wanted = np.asarray(self.tokens[self.scored : self.scored + len(logits)])
        top = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=1, dtype=np.float64))
        chosen = logits[np.arange(len(logits)), wanted].astype(np.float64) - top[:, 0]
        self.logprob += float((chosen - total).sum())
        self.greedy &= bool((logits.argmax(axis=1) == wanted).all())
        self.scored += len(logits)


class Likelihoods:
    """Scores continuations with its own session; `read_tokens` counts all tokens that were read."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: Tokens = ()  # the tokens in slot 0
        self.read_tokens = 0

    def of(self, requests: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        """A likelihood for each pair of context and continuation, in the order given; pairs may repeat.

        Neither may be empty. A context that is too long for the model loses its beginning; a continuation has at most
        `capacity` tokens.
        """
        cut = [self._cut(context, continuation) for context, continuation in requests]
        found: dict[tuple[Tokens, Tokens], Likelihood] = {}
        # Sorted, so that neighbours share long prefixes, such as the examples before every question of a task.
        for context, pairs in groupby(sorted(set(cut)), key=lambda pair: pair[0]):
            continuations = [continuation for _, continuation in pairs]
            for continuation, likelihood in zip(continuations, self._after(context, continuations), strict=True):
                found[context, continuation] = likelihood
        return [found[pair] for pair in cut]

    def _cut(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[Tokens, Tokens]:
        """Cut a pair to the model's context: capacity + 1 tokens fit, because the last token is never read."""
        assert context, "a context is not empty"
        assert 0 < len(continuation) <= self._session.capacity
        room = self._session.capacity + 1 - len(continuation)
        return tuple(context[-room:]), tuple(continuation)

    def _after(self, context: Tokens, continuations: Sequence[Tokens]) -> Iterator[Likelihood]:
        first = self._read_context(context)
        slots = self._session.slots
        for begin in range(0, len(continuations), slots):
            if not self._session.goes_on(0, len(context)):  # earlier continuations were long
                self._read_context(context)
            choices = [_Choice(tokens, slot) for slot, tokens in enumerate(continuations[begin : begin + slots])]
            for choice in choices:
                choice.add(first)
                if choice.slot and len(choice.tokens) > 1:
                    self._session.copy_prefix(0, choice.slot, len(context))
            self._read_choices(choices, len(context))
            self._held = (*context, *choices[0].tokens[:-1])
            yield from (Likelihood(choice.logprob, choice.greedy) for choice in choices)

    def _read_context(self, context: Tokens) -> Logits:
        """Read what slot 0 lacks of the context; return a copy of the logits after the context, float32[1, vocab]."""
        past = min(common_prefix(self._held, context), len(context) - 1)
        if not self._session.goes_on(0, past):  # windows have passed it
            past = 0
        while True:
            piece = context[past : past + self._session.chunk]
            logits = self._session.run([Part(0, past, piece, 1)])
            self.read_tokens += len(piece)
            past += len(piece)
            if past == len(context):
                return logits.copy()

    def _read_choices(self, choices: Sequence[_Choice], past: int) -> None:
        """Read all but the last token of each choice, as many together as fit into a call."""
        while True:
            parts, reading, room = [], [], self._session.chunk
            for choice in choices:
                piece = choice.tokens[choice.read : len(choice.tokens) - 1][:room]
                if piece:
                    parts.append(Part(choice.slot, past + choice.read, piece, len(piece)))
                    reading.append(choice)
                    room -= len(piece)
            if not parts:
                return
            logits, row = self._session.run(parts), 0
            for choice, part in zip(reading, parts, strict=True):
                choice.add(logits[row : row + part.rows])
                choice.read += part.rows
                row += part.rows
            self.read_tokens += row
