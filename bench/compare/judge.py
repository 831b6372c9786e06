"""Whether trials moved beyond their noise.

Welch's t-test of the logarithms of the trials, two-sided: speeds differ by factors, and a test by ranks cannot tell 3
trials from 3 others (its least p is 0.1). Trials of the same prompts and repetitions are compared by pairs, which
removes the differences between prompts. Holm's correction keeps the chance that any figure is called moved by mistake
to 5 %. Two runs differ more than the trials of one run show, so a move must also reach a given size.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from bench.compare.figures import Series
from mxspec.evaluate.significance import scipy_stats

LEAST_TRIALS = 3
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Move:
    """The new trials over the old ones: ratio of geometric means with its interval (95 %), and p of no move."""

    ratio: float
    interval: tuple[float, float]
    p: float


def move_of(old: Series, new: Series) -> Move | None:
    """None if either series has fewer than LEAST_TRIALS trials, or a trial that is not positive."""
    if min(old.values + new.values) <= 0 or min(len(old.values), len(new.values)) < LEAST_TRIALS:
        return None
    before, after = ([math.log(value) for value in series.values] for series in (old, new))
    if old.keys is not None and new.keys is not None and set(old.keys) == set(new.keys):
        of_key = dict(zip(new.keys, after, strict=True))
        moves = [of_key[key] - value for key, value in zip(old.keys, before, strict=True)]
        return _move(statistics.fmean(moves), statistics.variance(moves) / len(moves), len(moves) - 1)
    errors = [statistics.variance(logs) / len(logs) for logs in (before, after)]
    shares = sum(error**2 / (len(logs) - 1) for error, logs in zip(errors, (before, after), strict=True))
    freedom = sum(errors) ** 2 / shares if shares else math.inf
    return _move(statistics.fmean(after) - statistics.fmean(before), sum(errors), freedom)


def _move(mean: float, squared_error: float, freedom: float) -> Move:
    student = scipy_stats().t
    error = math.sqrt(squared_error)
    if error == 0:
        return Move(math.exp(mean), (math.exp(mean), math.exp(mean)), float(mean == 0))
    half = float(student.ppf(1 - LEVEL / 2, freedom)) * error
    p = 2 * float(student.sf(abs(mean) / error, freedom))
    return Move(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)), p)
