"""From logits to the distribution that a token is drawn from: temperature, then top-k, top-p, min-p, typical-p.

Target and draft are shaped by the same function before the verifier sees them, so that what is compared is what is
drawn from. What a row gives depends on its numbers alone: not on its place in memory, nor on other rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.truncate import Indices, min_p, top_k, top_p, typical_p

Logits = NDArray[np.float32]

MIN_TEMPERATURE = 1e-30  # a float32 that is not yet subnormal


def check_logits(logits: Logits) -> None:
    """Raise GenerationError where a row cannot be turned into a distribution: NaN, +inf, or all -inf."""
    check_peaks(logits.max(axis=-1))


def check_peaks(peaks: Logits | np.float32) -> None:
    """`check_logits`, where the largest of each row is known: NaN and inf both win a maximum."""
    if not np.isfinite(peaks).all():
        raise GenerationError(
            "logits", "got NaN or infinity, expected finite numbers: check the checkpoint, or keep more tensors in fp16"
        )


def argmax_tokens(logits: Logits) -> NDArray[np.int64]:
    """int64[rows]: the likeliest token of each row of float32[rows, vocab], the lowest id of a tie."""
    tokens: NDArray[np.int64] = logits.argmax(axis=-1)  # of a row with NaN, its first NaN
    check_peaks(np.take_along_axis(logits, np.expand_dims(tokens, -1), axis=-1))
    return tokens


def shape(logits: Logits, sampling: Sampling, ids: Indices | None = None) -> Distribution:
    """The distribution that a token is drawn from, of one row float32[vocab], or of the entries `ids` of one."""
    assert not sampling.greedy
    peak = logits.max()
    if not math.isfinite(peak):
        check_peaks(peak)
    if 0 < sampling.top_k < len(logits):
        kept = top_k(logits, sampling.top_k)
        logits, ids = logits[kept], _of(ids, kept)
    weights = logits - peak
    with np.errstate(over="ignore"):  # a tiny temperature: minus infinity, and a weight of 0
        if sampling.temperature != 1:
            weights /= np.float32(max(sampling.temperature, MIN_TEMPERATURE))
        np.exp(weights, out=weights)
    if sampling.top_p < 1:
        kept = top_p(weights, sampling.top_p)
        weights, ids = weights[kept], _of(ids, kept)
    if sampling.min_p > 0:
        kept = min_p(weights, sampling.min_p)
        weights, ids = weights[kept], _of(ids, kept)
    if sampling.typical_p < 1:
        kept = typical_p(weights, sampling.typical_p)
        weights, ids = weights[kept], _of(ids, kept)
    return Distribution.of(weights, ids)


def _of(ids: Indices | None, kept: Indices) -> Indices:
    return kept if ids is None else ids[kept]
