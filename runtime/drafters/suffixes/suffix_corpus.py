"""A corpus in which the longest ending of a text is found by bisection: tokens, and the order of their prefixes.

`ends` holds 0 … n sorted by the tokens before each, the last token first: as a suffix array of the reversed corpus.
So the entries next to a text's place in that order share its longest ending, and one search finds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError

COMPARED = 16  # tokens before an end that its place depends on: longer matches are as good


class SuffixCorpus:
    """The corpus of a bundle, mapped from its file: `tokens` int32[n] and `ends` int32[n]."""

    def __init__(self, tokens: NDArray[np.int32], ends: NDArray[np.int32], vocab_size: int) -> None:
        self._tokens, self._ends, self._vocab = tokens, ends, vocab_size

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], vocab_size: int) -> SuffixCorpus:
        """From the arrays of a file, not read yet; raises BundleError where `tokens` or `ends` are missing."""
        tokens, ends = arrays.get("tokens"), arrays.get("ends")
        if tokens is None or ends is None or not len(tokens) or ends.shape != tokens.shape:
            raise BundleError("corpus: expected tokens and as many ends; compile the bundle again")
        return cls(tokens, ends, vocab_size)

    def continuation(self, text: Sequence[int], most: int) -> tuple[int, list[int]]:
        """Number of last tokens of the text that the corpus has, at most COMPARED, and up to `most` that follow there.

        Takes one of the places where the longest ending occurs several times. Raises BundleError for an id outside
        the vocabulary.
        """
        wanted = list(text[: -COMPARED - 1 : -1])
        place = bisect_left(range(len(self._ends)), wanted, key=self._before)
        matched, end = max((self._shared(wanted, near), self._end(near)) for near in (place - 1, place))
        following = self._tokens[end : end + most].tolist() if matched else []
        for token in following:
            if not 0 <= token < self._vocab:
                raise BundleError(
                    f"corpus: token {token}, but the vocabulary has {self._vocab}; compile the bundle again"
                )
        return matched, following

    def _before(self, place: int) -> list[int]:
        """The tokens before the end at this place of the order, the last token first."""
        end = self._end(place)
        before: list[int] = self._tokens[max(end - COMPARED, 0) : end][::-1].tolist()
        return before

    def _end(self, place: int) -> int:
        """The end at this place of the order, limited to the corpus even if the file is damaged."""
        known = 0 <= place < len(self._ends)
        return min(max(int(self._ends[place]), 0), len(self._tokens)) if known else 0

    def _shared(self, wanted: Sequence[int], place: int) -> int:
        if not 0 <= place < len(self._ends):
            return 0
        count = 0
        for ours, theirs in zip(wanted, self._before(place), strict=False):
            if ours != theirs:
                break
            count += 1
        return count


def suffix_order(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """The ends 0 … n-1 of prefixes of `tokens` int32[n], by the tokens before each, the last one first.

    A prefix that is used up comes before those that go on; ends alike in COMPARED tokens stay in their order. Ranks of
    the last 1, 2, 4, … tokens each make those of twice as many (Manber and Myers 1993).
    """
    ends = np.arange(len(tokens), dtype=np.int64)
    rank = np.zeros(len(tokens), np.int64)  # of the last `compared` tokens before each end, 0 before none
    rank[1:] = tokens[:-1].astype(np.int64) + 1
    order, compared = np.argsort(rank, kind="stable"), 1
    while compared < COMPARED:
        earlier = np.zeros_like(rank)
        earlier[compared:] = rank[:-compared] if compared < len(rank) else 0
        key = rank * (int(rank.max(initial=0)) + 1) + earlier
        order = np.argsort(key, kind="stable")
        changed = np.diff(key[order], prepend=key[order[0]]) != 0
        rank[order] = np.cumsum(changed)
        compared *= 2
    return ends[order].astype(np.int32)
