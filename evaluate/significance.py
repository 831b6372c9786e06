"""Tail probabilities, and corrections for several tests; only numpy, so that a check needs no SciPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[np.float64]

_TERMS = 100_000  # limit of a series or a continued fraction; both converge long before
_TINY = 1e-300


def normal_tail(z: float) -> float:
    """Probability that a standard normal variate is at least as far from 0 as `z`, on either side."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Probability of a chi-square variate of at least `statistic`: the regularised upper incomplete gamma function.

    Its series below the mean, Lentz's continued fraction above it (Press et al., Numerical Recipes, section 6.2).
    """
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    factor = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for i in range(1, _TERMS):
            term *= x / (a + i)
            total += term
            if term < total * 1e-15:
                break
        return max(1 - total * factor, 0.0)
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    fraction = d
    for i in range(1, _TERMS):
        numerator = -i * (i - a)
        b += 2
        d = 1 / (numerator * d + b or _TINY)
        c = b + numerator / c or _TINY
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return fraction * factor


def kolmogorov_tail(uniforms: Sequence[float]) -> float:
    """The p-value of Kolmogorov and Smirnov's test that variates are uniform, approximated as in Stephens 1970."""
    values = np.sort(uniforms)
    count = len(values)
    steps = np.arange(count)
    distance = max(float((values - steps / count).max()), float(((steps + 1) / count - values).max()))
    x = distance * (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count))
    total = 2 * sum((-1) ** (i - 1) * math.exp(-2 * (i * x) ** 2) for i in range(1, 101))
    return min(max(total, 0.0), 1.0) if x > 0.2 else 1.0


def lag_tail(chains: Sequence[Sequence[float]], lags: int) -> float:
    """The p-value of a test that uniform variates are not correlated at lags 1 to `lags`."""
    statistic, degrees = 0.0, 0
    for lag in range(1, lags + 1):
        pairs = [(a, b) for chain in chains for a, b in zip(chain, chain[lag:], strict=False)]
        if len(pairs) >= 50:
            product = sum((a - 0.5) * (b - 0.5) for a, b in pairs) * 12  # each product has mean 0 and variance 1
            statistic += product**2 / len(pairs)
            degrees += 1
    return chi_square_tail(statistic, degrees) if degrees else 1.0


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


def holm(p_values: Mapping[str, float], false_alarm: float) -> set[str]:
    """The failed tests; with a correct engine, the probability that any fails is at most `false_alarm`."""
    corrected = holm_corrected([*p_values.values()])
    return {name for name, p in zip(p_values, corrected, strict=True) if p <= false_alarm}


def holm_corrected(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests (Holm 1979).

    If all tests with corrected p-values up to a level fail, a false alarm has at most that probability.
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min((len(p_values) - rank) * p_values[index], 1.0))
        corrected[index] = highest
    return corrected
