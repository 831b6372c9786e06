"""Prompt lookup: what followed the last three, two or one tokens when they last occurred in the text.

Saxena (2023), https://github.com/apoorvumang/prompt-lookup-decoding: copying, a special case of suffix decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from mxspec.runtime.drafters.guess import Guess, GuessingDrafter, copied, kind_of_match, shares_by_match
from mxspec.runtime.drafters.suffixes.suffix_automaton import BREAK

LONGEST = 3


class LookupText:
    """Where every one, two and three tokens of a text, or of the source before it, last ended."""

    def __init__(self, source: Sequence[int] = ()) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._kept = shares_by_match()
        before = [*source, BREAK] if source else []
        for token in before:
            self._read(token)
        self._before = len(before)

    def guess(self, tokens: Sequence[int], ahead: Sequence[int], most: int) -> Guess:
        """What followed the longest ending of the text, of up to three tokens, that occurred before."""
        for token in tokens[len(self._tokens) - self._before :]:
            self._read(token)
        last = [*self._tokens[-LONGEST:], *ahead]
        matched, end = self._find(last)
        found = copied(self._tokens, end, ahead, most if matched else 0)
        return Guess(list(takewhile(lambda token: token != BREAK, found)), matched, self._kept)

    def _find(self, last: Sequence[int]) -> tuple[int, int]:
        """Number of tokens that matched, and where they ended; (0, 0) where nothing matched."""
        for length in range(min(LONGEST, len(last)), 0, -1):
            end = self._ends.get(tuple(last[-length:]))
            if end is not None:
                return length, end
        return 0, 0

    def _read(self, token: int) -> None:
        """Learn from a token, and note what ended before it."""
        last, end = self._tokens[-LONGEST:], len(self._tokens)
        matched, before = self._find(last)
        if matched and token != BREAK:
            self._kept.observe(kind_of_match(matched), self._tokens[before] == token)
        for length in range(1, len(last) + 1):
            self._ends[tuple(last[-length:])] = end
        self._tokens.append(token)


class LookupDrafter(GuessingDrafter):
    """Guesses by the text's own last three tokens."""

    name = "lookup"

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> LookupText:
        return LookupText(source)
