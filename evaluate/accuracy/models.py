"""The models that are compared; all read windows in calls of the same length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from mxspec.runtime.models.reader import Reader
from mxspec.runtime.sampling.shape import Logits


class ScoredModel(Protocol):
    """A model that gives the logits after the last `rows` tokens of a text, in the pieces that calls() names."""

    def score(self, tokens: Sequence[int], rows: int, chunk: int, source: Sequence[int]) -> Iterator[Logits]: ...


def calls(tokens: int, rows: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, rows) of each call of at most `chunk` tokens; the last `rows` tokens of the call need logits."""
    for begin in range(0, tokens, chunk):
        end = min(begin + chunk, tokens)
        yield begin, end, max(0, min(end - begin, end - (tokens - rows)))


class BundleModel:
    """A model of a bundle in its own session, with room for one text."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def score(self, tokens: Sequence[int], rows: int, chunk: int, source: Sequence[int] = ()) -> Iterator[Logits]:
        """Yield float32[rows, vocab] for each call: the session's own buffer, which its next call overwrites."""
        self._reader.begin(source)
        for begin, end, wanted in calls(len(tokens), rows, chunk):
            logits = self._reader.forward(tokens[begin:end], max(wanted, 1))
            if wanted:
                yield logits
