"""Learn the cost of calls from past calls: seconds by number of tokens."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat

RECENT = 5  # observations kept for each size; the cost is their median
BELIEVED = 1.5  # an earlier run's figure is wrong if the first of this run differs by more than this factor
FRESH = 200  # number of calls for which a figure stays fresh
LONG_AGO = 200  # assumed calls since an earlier run, which weight its figures
REMEMBERED = 3  # observations that an earlier run's figure stands for: new ones soon outweigh them
FORGET = 0.97  # weight of past observations after each call
NEAR = 1.5  # a size is known if one within this factor was seen


class Costs:
    """Seconds of calls of one model, by their number of tokens.

    A call of more tokens never takes less time. If medians say otherwise, the machine was slower when it ran the
    smaller calls: such neighbours are pooled (isotonic regression by pooling adjacent violators), and recent ones weigh
    more.

    `expected` is the cost of a call by its tokens, in any unit, where it is known beforehand: one measured size then
    tells the seconds of other sizes.
    """

    def __init__(self, expected: Callable[[int], float] | None = None) -> None:
        self.expected = expected
        self._recent: dict[int, deque[float]] = {}
        self._points: list[tuple[int, float]] = []  # size and median, by rising size
        self._seen: dict[int, int] = {}  # the call in which a size was last seen
        self._remembered: set[int] = set()  # sizes that only an earlier run has seen
        self._believed = True  # False once this run contradicts them: one of the two runs may have shared its cores
        self._calls = 0
        self._curve: list[tuple[int, float]] | None = None  # the points made monotonic; None if it must be computed
        self._scaled: dict[int, float] = {}  # seconds of sizes that `expected` tells, until the next call

    def add(self, tokens: int, seconds: float) -> None:
        """Learn that a call of `tokens` took `seconds`. The first call of a size also prepares it, and is ignored."""
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
        self._scaled.clear()
        index = bisect_left(self._points, (tokens,))
        if index < len(self._points) and self._points[index][0] == tokens:
            self._points[index] = tokens, median
        else:
            self._points.insert(index, (tokens, median))

    @property
    def points(self) -> list[tuple[int, float]]:
        """Each known size, and its seconds."""
        return list(self._points)

    @property
    def recent_points(self) -> list[tuple[int, float]]:
        """The points seen recently, which show the machine as it is now; the next run can use them."""
        return [point for point in self._points if self._calls - self._seen[point[0]] <= FRESH]

    def remember(self, points: Sequence[tuple[int, float]]) -> None:
        """Use the points of an earlier run as if they had just been seen, until this run contradicts them."""
        for tokens, seconds in points:
            for _ in range(REMEMBERED):
                self.add(tokens, seconds)
        self._remembered = {size for size, _ in self._points}

    @property
    def sizes(self) -> int:
        """Number of different known sizes."""
        return len(self._points)

    @property
    def tell_growth(self) -> bool:
        """Whether they say by how much a call of more tokens takes longer."""
        return self.sizes >= (2 if self.expected is None else 1)

    def count(self, tokens: int) -> int:
        """Number of calls of about this size so far."""
        near = (size for size in self._recent if tokens <= size * NEAR and size <= tokens * NEAR)
        known = (size for size in near if self._believed or size not in self._remembered)
        return max((len(self._recent[size]) for size in known), default=0)

    def affordable(self, tokens: int, seconds: float, most: int) -> int:
        """Number of tokens, 1 to `most`, that can join a call of `tokens` and make it at most `seconds` longer.

        Measured sizes alone decide: `expected` counts reading, and calls of many tokens are bound by arithmetic.
        """
        if self.sizes == 1:  # assume that the time is proportional to the tokens
            ((size, known),) = self._points
            return max(min(int(size * seconds / known), most), 1)
        curve = self._risen()
        limit, low, high = interpolate(curve, tokens) + seconds, 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if interpolate(curve, tokens + middle) <= limit else (low, middle - 1)
        return low

    def seconds(self, tokens: int) -> float:
        """Expected seconds of a call of `tokens`; 0 before the first observation."""
        if not self._points:
            return 0.0
        if self.expected is None:
            return interpolate(self._risen(), tokens)
        if tokens not in self._scaled:
            self._scaled[tokens] = _interpolate_by(self.expected, self._risen(), tokens)
        return self._scaled[tokens]

    def _risen(self) -> list[tuple[int, float]]:
        """The points made monotonic."""
        if self._curve is None:
            self._curve = self._pooled()
        return self._curve

    def _pooled(self) -> list[tuple[int, float]]:
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
    """The median; for an even number of values, the lower of the two middle ones."""
    return sorted(values)[(len(values) - 1) // 2]


def interpolate(points: Sequence[tuple[int, float]], x: int) -> float:
    """Interpolate linearly between points (x, y) in rising order.

    Before the first point, y is that of the first; after the last, the last line is extended, but never falls.
    """
    if x <= points[0][0]:
        return points[0][1]
    index = min(bisect_left(points, (x,)), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(index - 1, 0)], points[index]
    if x0 == x1:
        return y1
    slope = (y1 - y0) / (x1 - x0)
    return y1 + (slope if x < x1 else max(slope, 0.0)) * (x - x1)


def _interpolate_by(expected: Callable[[int], float], points: Sequence[tuple[int, float]], x: int) -> float:
    """Interpolate the shares of the expected cost linearly; never below a smaller point or above a larger one."""
    shares = [(size, seconds / expected(size)) for size, seconds in points]
    found = interpolate(shares, x) * expected(x)
    least = max((seconds for size, seconds in points if size <= x), default=0.0)
    most = min((seconds for size, seconds in points if size >= x), default=math.inf)
    return min(max(found, least), most)
