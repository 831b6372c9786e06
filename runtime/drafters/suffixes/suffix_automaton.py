"""Every place of a growing text at which its last tokens occurred before, at a few microseconds a token.

A suffix automaton (Blumer et al. 1985), built online. A state stands for strings that end at the same places: the
longest has `_length` tokens, and `_link` leads to the state of their longest ending that ends at more places. In the
text  a b c a b  the state of the whole links to that of "ab", which ended before at 2: there a guess goes on, with c.

    root <- ab <- abcab        (<-: an ending that occurs at more places)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

ROOT = 0
DEEPEST = 32  # endings of a text whose latest place is kept up to date; only texts like "aaaa…" have more
BYTES_PER_TOKEN = 700  # 350 to 510 measured (bench/drafters.py); a text has at most two states a token
BREAK = -1  # between texts that have nothing to do with one another; no guess goes beyond


@dataclass(slots=True)
class Match:
    """The longest ending of some text that occurs in the automaton's text: its state, and its number of tokens."""

    state: int = ROOT
    length: int = 0


class SuffixAutomaton:
    """The endings of a text that is extended token by token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]  # the latest place, in tokens, at which the state's strings ended; not the text's own end
        self._last = ROOT

    def extend(self, tokens: Iterable[int]) -> None:
        """Extend the text by tokens."""
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Extend the text by one token."""
        end = len(self.tokens)
        self._note(end)
        self.tokens.append(token)
        new = self._state({}, end + 1, end + 1)
        state = self._last
        following, link = self._next, self._link
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        self._link[new] = ROOT if state < 0 else self._ending(state, token)
        self._last = new

    @property
    def repeated(self) -> Match:
        """The longest ending of the text that also occurs earlier in it."""
        state = max(self._link[self._last], ROOT)
        return Match(state, self._length[state])

    def advance(self, match: Match, token: int) -> None:
        """The text that was matched goes on by a token, which does not become part of the automaton's."""
        state, length = self._settled(match), match.length
        while state != ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        following = self._next[state].get(token)
        match.state, match.length = (ROOT, 0) if following is None else (following, length + 1)

    def end(self, match: Match) -> int:
        """The latest place at which what was matched ended: the token there is the one that followed it."""
        return self._end[self._settled(match)]

    def predict(self) -> tuple[int, int]:
        """Number of last tokens that occurred before, and the token that followed them; (0, BREAK) for no token."""
        state = self._link[self._last]
        return (self._length[state], self.tokens[self._end[state]]) if state > ROOT else (0, BREAK)

    def continuation(self, match: Match, ahead: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that followed the match; beyond the text's end `ahead` follows, and then these tokens."""
        if match.length == 0:
            return []
        return list(takewhile(lambda token: token != BREAK, _copied(self.tokens, self.end(match), ahead, most)))

    def _note(self, end: int) -> None:
        """Note that the text's endings have ended at `end`, before another token comes."""
        state, link, ends = self._last, self._link, self._end
        for _ in range(DEEPEST):
            if state <= ROOT:
                break
            ends[state] = end
            state = link[state]

    def _state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(ROOT)
        self._length.append(length)
        self._end.append(end)
        return len(self._length) - 1

    def _ending(self, state: int, token: int) -> int:
        """The state of the longest ending of `state` and the token; it may have to be split off a longer one."""
        whole = self._next[state][token]
        length = self._length[state] + 1
        if self._length[whole] == length:
            return whole
        part = self._state(self._next[whole].copy(), length, self._end[whole])
        self._link[part], self._link[whole] = self._link[whole], part
        while state >= 0 and self._next[state].get(token) == whole:
            self._next[state][token] = part
            state = self._link[state]
        return part

    def _settled(self, match: Match) -> int:
        """The present state of the match: it may have been split off longer strings since."""
        state = match.state
        while match.length and match.length <= self._length[self._link[state]]:
            state = self._link[state]
        return state


def _copied(tokens: Sequence[int], place: int, ahead: Sequence[int], most: int) -> Iterator[int]:
    """Up to `most` tokens from a place of a text on; beyond its end `ahead` goes on, and then what was copied."""
    beyond = list(ahead)
    for at in range(place, place + most):
        token = tokens[at] if at < len(tokens) else beyond[at - len(tokens)]
        yield token
        beyond.append(token)


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
