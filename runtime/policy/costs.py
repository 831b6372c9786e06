"""What calls cost, learnt from the calls that were made: seconds by number of tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import chain, pairwise, repeat

RECENT = 5  # observations kept of each size; their median counts
BELIEVED = 1.5  # an earlier run's figure is wrong where the first of this run is off by more than this factor
FRESH = 200  # calls that a figure stays fresh
LONG_AGO = 200  # calls since an earlier run, for the weight of what it saw
REMEMBERED = 3  # observations that an earlier run's figure stands for: new ones soon outweigh it
FORGET = 0.97  # weight of what was seen, a call later
NEAR = 1.5  # a size is known where one within this factor was seen


class Costs:
    """Seconds of calls of one model, by their number of tokens.

    A call of more tokens never takes less. Where medians say so, the machine was slower when the smaller ones were
    seen: then all of them are what they say together (isotonic regression by pooling adjacent violators), those that
    were seen lately more than others.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._points: list[tuple[int, float]] = []  # size and median, by rising size
        self._seen: dict[int, int] = {}  # when a size was seen last, counted in calls
        self._remembered: set[int] = set()  # sizes that an earlier run has seen, and this one not yet,
        self._believed = True  # which this run has not found wrong: one of the two may have shared its cores
        self._calls = 0
        self._curve: list[tuple[int, float]] | None = None  # the points, none below the one before; None: to be made

    def add(self, tokens: int, seconds: float) -> None:
        """A call of `tokens` took `seconds`. The first call of a size also prepares it, and does not count."""
        known = self._recent.get(tokens)
        if known is None:
            self._recent[tokens] = deque(maxlen=RECENT)
            return
        if tokens in self._remembered:
            self._remembered.discard(tokens)
            if not 1 / BELIEVED < seconds / _median(known) < BELIEVED:
                known.clear()
                self._believed = False
        known.append(seconds)
        self._calls += 1
        self._seen[tokens] = self._calls
        median = _median(known)
        self._curve = None
        index = bisect_left(self._points, (tokens,))
        if index < len(self._points) and self._points[index][0] == tokens:
            self._points[index] = tokens, median
        else:
            self._points.insert(index, (tokens, median))

    @property
    def points(self) -> list[tuple[int, float]]:
        """Each size that was seen, and its seconds."""
        return list(self._points)

    @property
    def recent_points(self) -> list[tuple[int, float]]:
        """Those that the next run can believe: seen lately, so that all of them saw the machine as it is now."""
        return [point for point in self._points if self._calls - self._seen[point[0]] <= FRESH]

    def remember(self, points: Sequence[tuple[int, float]]) -> None:
        """What an earlier run has seen, as if it had just been seen often enough, until this run finds it wrong."""
        for tokens, seconds in points:
            for _ in range(REMEMBERED):
                self.add(tokens, seconds)
        self._remembered = {size for size, _ in self._points}

    @property
    def sizes(self) -> int:
        """Number of different sizes that were seen."""
        return len(self._points)

    def count(self, tokens: int) -> int:
        """Number of calls of about this size that were seen."""
        near = (size for size in self._recent if tokens <= size * NEAR and size <= tokens * NEAR)
        known = (size for size in near if self._believed or size not in self._remembered)
        return max((len(self._recent[size]) for size in known), default=0)

    def affordable(self, tokens: int, seconds: float, most: int) -> int:
        """Number of tokens, 1 to `most`, that may join a call of `tokens` so that it takes at most `seconds` longer."""
        if self.sizes == 1:  # as if all of it grew with the tokens
            ((size, known),) = self._points
            return max(min(int(size * seconds / known), most), 1)
        limit, low, high = self.seconds(tokens) + seconds, 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds(tokens + middle) <= limit else (low, middle - 1)
        return low

    def seconds(self, tokens: int) -> float:
        """Expected seconds of a call of `tokens`; 0 before any was seen."""
        if not self._points:
            return 0.0
        if self._curve is None:
            self._curve = self._risen()
        return interpolate(self._curve, tokens)

    def _risen(self) -> list[tuple[int, float]]:
        if all(one[1] <= other[1] for one, other in pairwise(self._points)):
            return self._points
        pools: list[tuple[float, float, int]] = []  # seconds, weight, sizes
        for size, seconds in self._points:
            age = self._calls - self._seen[size] + (LONG_AGO if size in self._remembered else 0)
            weight, sizes = FORGET**age, 1
            while pools and pools[-1][0] > seconds:
                before, known, count = pools.pop()
                seconds = (before * known + seconds * weight) / (known + weight)
                weight, sizes = known + weight, count + sizes
            pools.append((seconds, weight, sizes))
        risen = chain.from_iterable(repeat(seconds, sizes) for seconds, _, sizes in pools)
        return list(zip((size for size, _ in self._points), risen, strict=True))


def _median(values: Sequence[float]) -> float:
    """The median; of an even number of values the smaller middle one."""
    return sorted(values)[(len(values) - 1) // 2]


def interpolate(points: Sequence[tuple[int, float]], x: int) -> float:
    """y at x on the straight lines between points (x, y) in rising order; beyond the last on the last line, not below.

    Before the first point it is the first one's y.
    """
    if x <= points[0][0]:
        return points[0][1]
    index = min(bisect_left(points, (x,)), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(index - 1, 0)], points[index]
    if x0 == x1:
        return y1
    slope = (y1 - y0) / (x1 - x0)
    return y1 + (slope if x < x1 else max(slope, 0.0)) * (x - x1)
