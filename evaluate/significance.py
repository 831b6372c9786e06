"""Tail probabilities, and corrections for several tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import needs

Probs = NDArray[np.float64]


def scipy_stats() -> Any:
    """scipy.stats, imported late. Raises MxspecError if it is not installed."""
    with needs("evaluate", "testing distributions"):
        from scipy import stats
    return stats


def lag_tail(chains: Sequence[Sequence[float]], lags: int) -> float:
    """The p-value of a test that uniform variates are not correlated at lags 1 to `lags`."""
    statistic, degrees = 0.0, 0
    for lag in range(1, lags + 1):
        pairs = [(a, b) for chain in chains for a, b in zip(chain, chain[lag:], strict=False)]
        if len(pairs) >= 50:
            product = sum((a - 0.5) * (b - 0.5) for a, b in pairs) * 12  # each product has mean 0 and variance 1
            statistic += product**2 / len(pairs)
            degrees += 1
    return float(scipy_stats().chi2.sf(statistic, degrees)) if degrees else 1.0


def sum_of(levels: Probs) -> Probs:
    """The distribution of a sum of independent whole numbers; each row of float64[n, levels] is the law of one.

    Multiplies the Fourier transforms of neighbours; exact except for rounding (1e-15).
    """
    while len(levels) > 1:
        if len(levels) % 2:
            unit = np.zeros((1, levels.shape[1]))
            unit[0, 0] = 1
            levels = np.concatenate([levels, unit])
        width = 2 * levels.shape[1] - 1
        size = 1 << (width - 1).bit_length()
        transforms = np.fft.rfft(levels, n=size, axis=1)
        levels = np.fft.irfft(transforms[::2] * transforms[1::2], n=size, axis=1)[:, :width]
    law: Probs = np.maximum(levels[0], 0.0)
    return law


def sum_tail(law: Probs, total: int) -> float:
    """Two-sided p-value of the sum `total` under the law float64[totals]: the tail on its side, doubled."""
    return min(2 * min(float(law[: total + 1].sum()), float(law[total:].sum())), 1.0)


def rejected_beyond(law: Probs, level: float) -> NDArray[np.bool_]:
    """bool[totals]: the sums whose `sum_tail` is at most `level`."""
    below, above = law.cumsum(), law[::-1].cumsum()[::-1]
    rejected: NDArray[np.bool_] = 2 * np.minimum(below, above) <= level
    return rejected


def holm_corrected(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests (Holm 1979).

    If all tests with corrected p-values up to a level fail, a false alarm has at most that probability.
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min((len(p_values) - rank) * p_values[index], 1.0))
        corrected[index] = highest
    return corrected
