"""A distribution over token ids, kept as the weights of the ids that have any.

Where top-k or top-p left 50 of 152,000 ids, whatever follows looks at 50 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling.randomness import Draws

_BLOCK = 512  # weights summed at once when a token is drawn: 10 times faster than one long cumulative sum


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probability of `ids[i]` = `weights[i]` / `total`; of any other id 0.

    `ids` int64[n] in ascending order, or None for 0 … n-1. `weights` are float32 or float64, not negative; as they
    stand they define the distribution exactly, and every sum over them is float64.
    """

    ids: NDArray[np.int64] | None
    weights: NDArray[np.float32] | NDArray[np.float64]
    total: float

    @classmethod
    def of(
        cls, weights: NDArray[np.float32] | NDArray[np.float64], ids: NDArray[np.int64] | None = None
    ) -> Distribution:
        """The distribution in proportion to `weights`."""
        return cls(ids, weights, float(weights.sum(dtype=np.float64)))

    @classmethod
    def point(cls, token: int) -> Distribution:
        """The distribution of a choice that is certain, as a greedy one is."""
        return cls(np.array([token]), np.ones(1, np.float64), 1.0)

    @property
    def certain(self) -> bool:
        """Whether only one token can be drawn."""
        return len(self.weights) == 1

    def probability(self, token: int) -> float:
        """Probability of one token id."""
        index = self._index(token)
        return 0.0 if index is None else float(self.weights[index]) / self.total

    def probabilities(self, ids: NDArray[np.int64] | None, count: int) -> NDArray[np.float64]:
        """float64[count] probabilities of ascending `ids`, or of 0 … count-1 where it is None."""
        if ids is self.ids and count == len(self.weights):
            return np.divide(self.weights, self.total, dtype=np.float64)
        wanted = np.arange(count) if ids is None else ids
        own = np.arange(len(self.weights)) if self.ids is None else self.ids
        where = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        return np.where(own[where] == wanted, self.weights[where].astype(np.float64), 0.0) / self.total

    def draw(self, uniform: float) -> int:
        """The first id at which the cumulative probability exceeds `uniform`, a number in [0, 1)."""
        weights = self.weights
        start, rest = 0, uniform
        if len(weights) > 4 * _BLOCK:
            blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64).cumsum()
            block = _first_above(blocks, uniform * blocks[-1])
            start = block * _BLOCK
            before = blocks[block - 1] if block else 0.0
            weights = weights[start : start + _BLOCK]
            rest = (uniform * blocks[-1] - before) / (blocks[block] - before)
        sums = weights.cumsum(dtype=np.float64)
        index = start + _first_above(sums, rest * sums[-1])
        return index if self.ids is None else int(self.ids[index])

    @property
    def likeliest(self) -> int:
        """The likeliest id, the lowest of a tie."""
        index = int(self.weights.argmax())
        return index if self.ids is None else int(self.ids[index])

    def race(self, draws: Draws, place: int, noise_of: NDArray[np.int64] | None = None) -> int:
        """The first of exponential clocks whose rates are the weights: a draw by noise that others can share.

        It is argmax(log p + g) with Gumbel noise g = -log of the exponentials (Maddison et al. 2014). With `noise_of`
        int64[vocab] each id has the noise of another, which names the same token elsewhere.
        """
        ids = self.ids
        if noise_of is not None:
            ids = noise_of if ids is None else noise_of[ids]
        clocks = draws.exponentials(place, ids, len(self.weights))
        index = int((self.weights / clocks).argmax())
        return index if self.ids is None else int(self.ids[index])

    def _index(self, token: int) -> int | None:
        if self.ids is None:
            return token if token < len(self.weights) else None
        index = int(np.searchsorted(self.ids, token))
        return index if index < len(self.ids) and self.ids[index] == token else None


def _first_above(sums: NDArray[np.float64], level: float) -> int:
    """Index of the first cumulative sum above `level`; its step is never of weight 0, not even after rounding."""
    index = int(np.searchsorted(sums, level, side="right"))
    return index if index < len(sums) else int(np.searchsorted(sums, sums[-1]))
