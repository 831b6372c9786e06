"""Confidence intervals of means over items, and a test of whether two ways of writing differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.significance import scipy_stats
from mxspec.evaluate.tasks.result import ScoreInterval

RESAMPLES = 9_999
FEWEST_ITEMS = 10  # with few items not even an exact test can reject at 0.99: 2 ** -7 is nearly 0.01
_SEED = 1
Floats = NDArray[np.float64]


def bootstrap_mean(values: Floats, confidence: float) -> ScoreInterval:
    """The mean of float64[items], and the percentiles of means of items drawn with replacement (Efron 1979)."""
    mean = float(values.mean())
    if np.all(values == values[0]):  # nothing to draw; scipy refuses equal values
        return ScoreInterval(mean=mean, low=mean, high=mean)
    found = scipy_stats().bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    low, high = map(float, found.confidence_interval)
    return ScoreInterval(mean=mean, low=low, high=high)


def paired_p_value(one: Floats, other: Floats) -> float:
    """The p-value of the mean difference of float64[items]: how often random swaps of an item's scores give as much.

    This is Fisher's randomisation test, exact for any number of items if both ways have the same distribution; a
    bootstrap interval is too narrow for few items.
    """
    if np.array_equal(one, other):
        return 1.0
    found = scipy_stats().permutation_test(
        (one, other),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)
