"""From logits to the distribution that a token is drawn from: temperature, then top-k, then top-p.

Target and draft are shaped by the same function before the verifier sees them, so that what is compared is what is
drawn from. Ties go to the lowest id, everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling

Logits = NDArray[np.float32]

FIRST_CANDIDATES = 64  # top-p looks at this many of the likeliest tokens first, then at 8 times as many, and so on
MIN_TEMPERATURE = 1e-30  # a float32 that is not yet subnormal


def check_logits(logits: Logits) -> None:
    """Raise GenerationError where a row cannot be turned into a distribution: NaN, +inf, or all -inf."""
    if not np.isfinite(logits.max(axis=-1)).all():  # NaN and inf both win a maximum
        raise GenerationError(
            "logits: got NaN or infinity, expected finite numbers: check the checkpoint, or keep more tensors in fp16"
        )


def argmax_tokens(logits: Logits) -> NDArray[np.int64]:
    """int64[rows]: the likeliest token of each row of float32[rows, vocab], the lowest id of a tie."""
    check_logits(logits)
    tokens: NDArray[np.int64] = logits.argmax(axis=-1)
    return tokens


def shape(logits: Logits, sampling: Sampling) -> Distribution:
    """The distribution that a token is drawn from, of one row float32[vocab]."""
    assert not sampling.greedy
    check_logits(logits)
    peak, ids = logits.max(), None
    if 0 < sampling.top_k < len(logits):
        ids = np.sort(largest(logits, sampling.top_k))
        logits = logits[ids]
    with np.errstate(over="ignore"):  # a tiny temperature: minus infinity, and a weight of 0
        weights = np.exp((logits - peak) / np.float32(max(sampling.temperature, MIN_TEMPERATURE)))
    if sampling.top_p < 1:
        kept = np.sort(nucleus(weights, sampling.top_p))
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    return Distribution.of(weights, ids)


def nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.int64]:
    """Indices of the shortest list of largest weights that holds at least the share `top_p` of their sum."""
    total = weights.sum(dtype=np.float64)
    # All weights below this one together are less than what may be left out.
    candidates = np.flatnonzero(weights >= (1 - top_p) * total / len(weights))
    weights = weights[candidates]
    count = FIRST_CANDIDATES
    while True:
        ids = largest(weights, min(count, len(weights)))
        mass = np.cumsum(weights[ids], dtype=np.float64)
        if mass[-1] >= top_p * total or len(ids) == len(weights):
            return candidates[ids[: int(np.searchsorted(mass, top_p * total)) + 1]]
        count *= 8


def largest(weights: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest weights, largest first, ties by lowest id: a partition, not a sort of the row."""
    if count >= len(weights):
        return np.argsort(-weights, kind="stable")
    bound = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = np.flatnonzero(weights > bound)
    ties = np.flatnonzero(weights == bound)[: count - len(above)]
    ids = np.concatenate([above, ties])
    return ids[np.argsort(-weights[ids], kind="stable")]
