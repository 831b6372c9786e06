"""How often a draft model is right, by how sure it is: what decides where a round stops guessing."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from mxspec.runtime.sampling.shape import Logits

LEVELS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # probability of the likeliest token
PRIOR_WEIGHT = 8.0  # weight, in tokens, of the prior that a draft is right as often as its probability says
FORGET = 0.995


class Sureness:
    """The share of drafted tokens that is kept, by level."""

    def __init__(self) -> None:
        edges = (0.0, *LEVELS, 1.0)
        self._kept = [PRIOR_WEIGHT * (low + high) / 2 for low, high in pairwise(edges)]
        self._seen = [PRIOR_WEIGHT] * len(self._kept)

    def level(self, probability: float) -> int:
        """The level of a distribution whose likeliest token has this probability."""
        return bisect_right(LEVELS, probability)

    def share(self, level: int) -> float:
        """How often tokens of this level are kept."""
        return self._kept[level] / self._seen[level]

    @property
    def mean(self) -> float:
        """The share that is kept over all levels."""
        return sum(self._kept) / sum(self._seen)

    def observe(self, level: int, *, kept: bool) -> None:
        """Count a token of this level that was kept or rejected."""
        self._kept[level] = FORGET * self._kept[level] + kept
        self._seen[level] = FORGET * self._seen[level] + 1


def peak_probability(row: Logits) -> float:
    """The softmax probability of the likeliest token of float32[vocab]; 0 where a row is not finite."""
    weights = np.exp(row - row.max())
    total = float(weights.sum())
    return 1 / total if np.isfinite(total) and total > 0 else 0.0
