"""How many tokens to draft in the next round, by what the rounds before it cost: none where drafting does not pay.

A round that drafts K tokens emits (1 - a^(K+1)) / (1 - a) of them on average, a being the share of drafted tokens that
is kept (Leviathan et al. 2023, equation 1), and costs K steps of the draft and one call of the target. K is chosen
before anything of the round is drawn, from the past alone, so no text and no distribution changes by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mxspec.runtime.events import Round

FIRST_TRIES = (4, 0)  # a middle K and plain decoding: two points give the cost of the others, about
FIRST_ROUNDS = 2  # of each, behind one that does not count
RECENT = 5  # observations kept; their median counts, which favours no K for how often it was seen
FORGET = 0.98  # weight of the acceptance seen so far, a round later
PRIOR = (3.0, 4.0)  # accepted, evaluated: what is believed before anything was seen
KEEP_ROUNDS = 4  # rounds that a choice stands: thinking in each would cost a small model's step some percents
TRY_EVERY = 16  # rounds until another K is tried: costs have steps, and change with the text's length and the machine
WORTH_TRYING, RARELY = 0.8, 100  # of the best expected speed; what promises less is tried after so many rounds
SHORTEST_PAUSE, LONGEST_PAUSE = 16, 512  # rounds of plain decoding until drafting is tried again,
TRIED_ROUNDS = 4  # for so many rounds: in the first, the draft has to read what it missed


class KChooser(Protocol):
    """Says how many tokens a round drafts at most, and hears what came of it."""

    def next_k(self) -> int: ...

    def observe(self, done: Round) -> None: ...


class FixedK:
    """The same K in every round."""

    def __init__(self, k: int) -> None:
        self._k = k

    def next_k(self) -> int:
        return self._k

    def observe(self, done: Round) -> None:
        pass


class AutoK:
    """The K of 0 to `most` with the most expected tokens a second.

    It learns from every round that it hears of, whichever text that belongs to: costs are the machine's and the pair's.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._draft = _Recent()  # seconds a drafted token
        self._rest: dict[int, _Recent] = {}  # by K, seconds of a round but for the drafting
        self._seen: dict[int, int] = {}  # by K, the last round that drafted so many
        self._accepted, self._evaluated = PRIOR
        self._rounds = self._plain_rounds = self._tried = 0
        self._pause = SHORTEST_PAUSE
        self._choice, self._stands_until = 0, 0

    def next_k(self) -> int:
        if self._rounds >= self._stands_until:
            self._choice, rounds = self._choose()
            self._stands_until = self._rounds + rounds
        return self._choice

    def observe(self, done: Round) -> None:
        self._rounds += 1
        self._seen[done.drafted] = self._rounds
        if done.drafted:
            if self._plain_rounds == 0:
                self._draft.add(done.draft_seconds / done.drafted)
            self._plain_rounds = 0
        else:
            self._plain_rounds += 1
        # Rounds of plain decoding forget too: where drafting is tried again, the text may be another.
        self._accepted = FORGET * self._accepted + done.accepted
        self._evaluated = FORGET * self._evaluated + done.evaluated
        if done.drafted not in self._rest:  # the first call of a size also prepares it
            self._rest[done.drafted] = _Recent()
        else:
            self._rest[done.drafted].add(done.seconds - done.draft_seconds)

    def _choose(self) -> tuple[int, int]:
        """K, and for how many rounds."""
        for k in FIRST_TRIES:
            known = self._rest.get(min(k, self.most))
            if known is None or known.count < FIRST_ROUNDS:
                return min(k, self.most), 1
        tokens_per_second = self._expected_speeds()
        best = tokens_per_second.index(max(tokens_per_second))  # the smallest of equals
        if best > 0:
            self._pause = SHORTEST_PAUSE
            if self._rounds - self._tried >= TRY_EVERY:
                self._tried = self._rounds
                return self._other_than(best, tokens_per_second), 1
        elif self._plain_rounds >= self._pause:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return 1 + tokens_per_second[1:].index(max(tokens_per_second[1:])), TRIED_ROUNDS
        return best, KEEP_ROUNDS

    def _other_than(self, best: int, tokens_per_second: Sequence[float]) -> int:
        """Of the neighbours of the best K and plain decoding the one that was not seen for longest, if it may pay."""
        known = {k for k, seconds in self._rest.items() if seconds.count}
        unseen = {k: self._rounds - self._seen[k] if k in known else RARELY for k in (0, best - 1, best + 1)}
        may_pay = [
            k
            for k, rounds in unseen.items()
            if k <= self.most and (rounds >= RARELY or tokens_per_second[k] >= WORTH_TRYING * tokens_per_second[best])
        ]
        return max(may_pay, key=lambda k: (unseen[k], tokens_per_second[k]), default=best)

    def _expected_speeds(self) -> list[float]:
        """Tokens a second at each K."""
        acceptance, draft = self._accepted / self._evaluated, self._draft.median
        known = sorted((k, seconds.median) for k, seconds in self._rest.items() if seconds.count)
        return [expected_tokens(acceptance, k) / (k * draft + interpolate(known, k)) for k in range(self.most + 1)]


class _Recent:
    """The last few observations of a time, and their median (0 before there is one)."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=RECENT)
        self.median = 0.0

    @property
    def count(self) -> int:
        return len(self._last)

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self.median = sorted(self._last)[len(self._last) // 2]


def expected_tokens(acceptance: float, k: int) -> float:
    """Mean tokens of a round that drafts k, each kept with the same probability: 1 to k + 1."""
    return k + 1.0 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)


def interpolate(points: Sequence[tuple[int, float]], x: int) -> float:
    """y at x on the straight lines between points (x, y) in rising order; beyond the last on the last line, not below.

    The first point is at or before x.
    """
    (x0, y0), (x1, y1) = points[0], points[0]
    for point in points[1:]:
        if x <= x1:
            break
        (x0, y0), (x1, y1) = (x1, y1), point
    if x0 == x1:
        return y1
    slope = (y1 - y0) / (x1 - x0)
    return y1 + (slope if x < x1 else max(slope, 0.0)) * (x - x1)
