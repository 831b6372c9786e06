"""How sure means over items are, and whether two ways of writing differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.tasks.result import Interval
from mxspec.evaluate.tasks.task import require

RESAMPLES = 9_999
FEWEST_ITEMS = 10  # with fewer even an exact test cannot say no at 0.99: 2 ** -7 is nearly as large as 0.01
_SEED = 1
Floats = NDArray[np.float64]


def bootstrap_mean(values: Floats, confidence: float) -> Interval:
    """The mean of float64[items], and the percentiles of means of items drawn with replacement (Efron 1979)."""
    mean = float(values.mean())
    if np.all(values == values[0]):  # nothing to draw; scipy refuses a single one
        return Interval(mean=mean, low=mean, high=mean)
    found = (
        _stats()
        .bootstrap(
            (values,),
            np.mean,
            n_resamples=RESAMPLES,
            confidence_level=confidence,
            method="percentile",
            rng=np.random.default_rng(_SEED),
        )
        .confidence_interval
    )
    return Interval(mean=mean, low=float(found.low), high=float(found.high))


def paired_p_value(one: Floats, other: Floats) -> float:
    """How often the mean difference of float64[items] is so far from 0 where each item's two scores change places.

    That is exact for any number of items where both ways have the same distribution (Fisher's randomisation test); an
    interval by the bootstrap is too narrow for a few.
    """
    if np.array_equal(one, other):
        return 1.0
    found = _stats().permutation_test(
        (one, other),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)


def _stats() -> Any:
    return require("scipy.stats", "scipy", "speccheck tasks")
