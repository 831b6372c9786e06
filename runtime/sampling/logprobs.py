"""Log-probabilities of emitted tokens, with the likeliest tokens beside them.

Raw ones are of the model's own logits (log-softmax), before anything shapes them; shaped ones are of the distribution
that the token was drawn from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.shape import Logits, check_peaks
from mxspec.runtime.sampling.truncate import largest, total


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of a token's probability, and (id, logarithm) of the best, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def raw_logprob(logits: Logits, token: int, best: int = 0) -> Logprob:
    """From one row float32[vocab] of the model's logits, to 2e-6 or better; ties of the best by lowest id."""
    peak = logits.max()
    check_peaks(peak)
    weights = logits - peak
    log_sum = float(peak) + math.log(total(np.exp(weights, out=weights)))
    top = largest(logits, best) if best else ()
    beside = tuple((int(i), float(logits[i]) - log_sum) for i in top if logits[i] > -np.inf)
    return Logprob(token, float(logits[token]) - log_sum, beside)


def shaped_logprob(distribution: Distribution, token: int, best: int = 0) -> Logprob:
    """From the distribution that a token is drawn from: fewer than `best` where fewer tokens have a probability."""
    weights, ids = distribution.weights, distribution.ids
    top = [(int(i if ids is None else ids[i]), float(weights[i])) for i in (largest(weights, best) if best else ())]
    log_total = math.log(distribution.total)
    return Logprob(
        token,
        _log(distribution.probability(token)),
        tuple((i, math.log(weight) - log_total) for i, weight in top if weight > 0),
    )


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
