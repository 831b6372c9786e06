"""The answers of a process, kept for the guesses of later texts, within a bound and separately for each key."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.drafters.suffixes.suffix_automaton import BREAK, BYTES_PER_TOKEN, SuffixAutomaton


class PastAnswers:
    """Two generations of automata by cache key, at most `limit_bytes` together.

    An automaton cannot forget, so the older generation is dropped whole when the newer has half of the bytes. A text
    sees only the answers of its own key.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._most = limit_bytes // 2 // BYTES_PER_TOKEN  # tokens of a generation
        self._generations: tuple[dict[str, SuffixAutomaton], ...] = ({}, {})  # the newer first
        self._tokens = 0  # tokens of the newer generation

    def of(self, cache_key: str) -> list[SuffixAutomaton]:
        """The automata that a text of this key may look into, the newer first."""
        return [generation[cache_key] for generation in self._generations if cache_key in generation]

    def add(self, answer: Sequence[int], cache_key: str) -> None:
        """Add a complete answer."""
        if self._most < 2 or not answer:
            return
        kept = [*answer[-(self._most - 1) :], BREAK]
        if self._tokens + len(kept) > self._most:
            self._generations = ({}, self._generations[0])
            self._tokens = 0
        self._generations[0].setdefault(cache_key, SuffixAutomaton()).extend(kept)
        self._tokens += len(kept)
