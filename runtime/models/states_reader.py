"""One text read by a draft that reads hidden states, and by the target, which gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Part, Session
from mxspec.runtime.sampling.shape import Logits


class StatesReader:
    """Scores whole texts, each by a draft beside its target; both have a slot."""

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
