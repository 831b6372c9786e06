"""Medians, quartiles and percentiles of trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.result import Value

Quartiles = tuple[float, float]
Values = Sequence[float] | NDArray[np.float64]


def median(values: Values) -> float:
    return float(np.median(values))


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios of trials that belong together."""
    return median([a / b for a, b in zip(over, under, strict=True)])


def percentile(values: Values, percent: float) -> float:
    """The value that `percent` of 100 values do not exceed."""
    return float(np.percentile(values, percent))


def quartiles(values: Values) -> Quartiles:
    """The two values that the middle half lies between."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


class Percentiles(Value):
    """Seconds."""

    median: float
    p90: float
    p99: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        middle, high, highest = np.percentile(values, (50, 90, 99)).tolist()
        return cls(median=middle, p90=high, p99=highest)
