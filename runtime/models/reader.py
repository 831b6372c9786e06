"""One text read by one model, call by call: to score it, or to time the calls.

A draft that reads a target's hidden states gets others here, so its calls can be timed, but its logits say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.shape import Logits


class Reader:
    """A text in a slot of a session; `length` tokens of it have been read."""

    def __init__(self, session: Session, slot: int = 0) -> None:
        self.session = session
        self.length = 0
        self._slot = slot

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Read more tokens in one call; float32[rows, vocab], the logits after the last `rows` of them.

        The result is the session's own buffer: its next call writes over it.
        """
        logits = self.session.run([self.session.part(self._slot, self.length, tokens, rows)])
        self.length += len(tokens)
        return logits

    def append(self, tokens: Sequence[int], rows: int) -> Logits:
        """forward() after the tokens without wanted logits were read in calls of at most `chunk` tokens."""
        first, chunk = 0, self.session.chunk
        while len(tokens) - first > max(rows, chunk):
            count = min(chunk, len(tokens) - first - rows)
            self.forward(tokens[first : first + count], 1)
            first += count
        return self.forward(tokens[first:], rows)

    def begin(self, source: Sequence[int] = ()) -> None:
        """Forget all that was read; an encoder reads the source of a new text."""
        self.rollback(0)
        if source:
            self.session.encode([(self._slot, source)])

    def score(self, tokens: Sequence[int], source: Sequence[int] = ()) -> Iterator[Logits]:
        """Yield the logits after every token of a new text, chunk by chunk; each is the caller's own copy."""
        self.begin(source)
        for start in range(0, len(tokens), self.session.chunk):
            piece = tokens[start : start + self.session.chunk]
            yield self.forward(piece, len(piece)).copy()

    def goes_on(self, length: int) -> bool:
        """Whether the text can go on after its first `length` tokens."""
        return self.session.goes_on(self._slot, length)

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length


class StatesReader:
    """Scores whole texts by a draft that reads hidden states, each beside its target; both have a slot."""

    def __init__(self, session: Session, target: Session) -> None:
        self.session = session
        self._target = Reader(target)

    def score(self, tokens: Sequence[int], source: Sequence[int] = ()) -> Iterator[Logits]:
        """Yield the logits after every token, chunk by chunk; after the first all are alike: it has no state before it.

        Each chunk is the caller's own copy.
        """
        self._target.begin()
        given, chunk = self._target.session.given_states, self.session.chunk
        assert given is not None
        yield np.zeros((1, self.session.real_vocab), np.float32)
        for first in range(1, len(tokens), chunk):
            piece = tokens[first : first + chunk]
            self._target.append(tokens[self._target.length : first + len(piece) - 1], 1)
            states = given.of(0, first - 1, len(piece))
            yield self.session.run([Part(0, first - 1, piece, len(piece), states)]).copy()
