"""The confidence interval of a mean over dependent tokens, by batch means.

The differences of two models' losses on neighbouring tokens are correlated, so an interval from their variance would be
too narrow. They are summed over blocks of BLOCK consecutive tokens of a document, which are taken as independent: batch
means (Carlstein 1986, "The use of subseries values for estimating the variance of a general statistic from a stationary
sequence"). Blocks at the ends of documents are shorter, so the mean is a ratio of sums, with the variance of a ratio
estimator (Cochran, Sampling Techniques, 3rd ed. 1977, eq. 6.4), and Student's t, because a short text has few blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

BLOCK = 64  # tokens
CONFIDENCE = 0.95
FEWEST_BLOCKS = 10  # with fewer, the variance cannot be estimated


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean in nats a token and its confidence interval, which is not finite if there are too few blocks."""

    mean: float
    low: float
    high: float
    blocks: int


def block_starts(lengths: Iterable[int]) -> list[int]:
    """Where blocks begin among the tokens of consecutive documents of these lengths; no block spans two documents."""
    starts: list[int] = []
    begin = 0
    for length in lengths:
        starts += range(begin, begin + length, BLOCK)
        begin += length
    return starts


def mean_interval(values: NDArray[np.float64], starts: list[int]) -> Interval:
    """The mean of float64[tokens] and its interval; blocks of tokens begin at `starts`."""
    sums, counts = np.add.reduceat(values, starts), np.diff([*starts, len(values)])
    mean, blocks = float(values.mean()), len(starts)
    if blocks < FEWEST_BLOCKS or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, blocks)
    spread = sums - mean * counts
    error = math.sqrt(blocks / (blocks - 1) * float(spread @ spread)) / len(values)
    reach = t_quantile((1 + CONFIDENCE) / 2, blocks - 1) * error
    return Interval(mean, mean - reach, mean + reach, blocks)


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t, expanded around the normal one (Abramowitz, Stegun 26.7.5): 2e-5 off at df = 9."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum([z, *(term / freedom**power for power, term in enumerate(terms, 1))])
