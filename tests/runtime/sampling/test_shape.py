"""Shaping and drawing, against plain float64 code that sorts everything."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import argmax_tokens, shape
from mxspec.runtime.sampling.truncate import largest


def shape_plainly(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float64]:
    """float64[vocab] by full sorts: largest first, ties by lowest id."""
    scaled = logits.astype(np.float64) / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    order = sorted(range(len(probs)), key=lambda i: (-logits[i], i))
    if sampling.top_k:
        probs[order[sampling.top_k :]] = 0
    probs /= probs.sum()
    kept, mass = 0, 0.0
    while sampling.top_p < 1 and kept < len(order) and mass < sampling.top_p:
        mass += probs[order[kept]]
        kept += 1
    if sampling.top_p < 1:
        probs[order[kept:]] = 0
    return probs / probs.sum()


def dense(distribution: Distribution, vocab: int) -> NDArray[np.float64]:
    return distribution.probabilities(None, vocab)


@pytest.mark.parametrize("vocab", [1, 2, 7, 200, 5000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (90, 0.7), (0, 0.9), (0, 1e-9), (6000, 0.5)]
)
def test_shape_equals_plain_code(vocab: int, temperature: float, top_k: int, top_p: float) -> None:
    logits = (3 * np.random.default_rng(vocab).standard_normal(vocab)).astype(np.float32)
    sampling = Sampling(temperature, top_k, top_p)
    got = shape(logits, sampling)
    np.testing.assert_allclose(dense(got, vocab), shape_plainly(logits, sampling), rtol=2e-6, atol=1e-12)
    assert [got.probability(i) for i in range(min(vocab, 50))] == list(dense(got, vocab)[:50])


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.array([0, 2, 1, 2, 2, 1], np.float32)
    assert argmax_tokens(logits) == 1
    assert list(largest(logits, 4)) == [1, 3, 4, 2]
    assert list(np.flatnonzero(dense(shape(logits, Sampling(1.0, top_k=2)), 6))) == [1, 3]
    assert list(np.flatnonzero(dense(shape(logits, Sampling(1.0, top_p=0.3)), 6))) == [1, 3]
    assert list(np.flatnonzero(dense(shape(np.zeros(6, np.float32), Sampling(1.0, top_k=3, top_p=0.5)), 6))) == [0, 1]


def test_a_flat_distribution_over_a_large_vocabulary() -> None:
    kept = shape(np.zeros(152_000, np.float32), Sampling(1.0, top_p=0.5))
    assert kept.ids is not None
    np.testing.assert_array_equal(kept.ids, np.arange(76_000))


def test_a_tiny_temperature_is_greedy_without_a_warning() -> None:
    logits = np.array([1, 3, -(2.0**100), 2.999], np.float32)
    for temperature in (1e-3, 1e-30, 1e-300):
        assert dense(shape(logits, Sampling(temperature)), 4)[1] == pytest.approx(1, abs=0.3)
    assert dense(shape(logits, Sampling(1e-30)), 4)[1] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 3])
def test_nan_and_infinity_are_errors(bad: float, place: int) -> None:
    logits = np.arange(5, dtype=np.float32)
    logits[place] = bad
    with pytest.raises(GenerationError, match="NaN or infinity"):
        shape(logits, Sampling(1.0, top_k=2))
    with pytest.raises(GenerationError, match="NaN or infinity"):
        argmax_tokens(np.stack([np.zeros(5, np.float32), logits]))


def test_minus_infinity_is_an_impossible_token_and_a_row_of_it_an_error() -> None:
    logits = np.array([-np.inf, 0, 1, -np.inf], np.float32)
    assert list(np.flatnonzero(dense(shape(logits, Sampling(1.0, top_k=3)), 4))) == [1, 2]
    with pytest.raises(GenerationError):
        shape(np.full(4, -np.inf, np.float32), Sampling(1.0))


@pytest.mark.parametrize("vocab", [1, 5, 2048, 2049, 5000, 70_001])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_draw_inverts_the_cumulative_distribution(vocab: int, gaps: bool) -> None:
    rng = np.random.default_rng(vocab)
    weights = rng.exponential(size=vocab).astype(np.float32)
    if gaps:
        weights[rng.random(vocab) < 0.7] = 0
        weights[[0, -1]] = 0, weights[-1] * (vocab == 1) + (vocab == 1)
        weights[vocab // 2] = 1
    distribution = Distribution.of(weights)
    cumulative = np.cumsum(weights.astype(np.float64)) / weights.sum(dtype=np.float64)
    for uniform in [0.0, 1 - 2.0**-53, *rng.random(200)]:
        token = distribution.draw(uniform)
        assert weights[token] > 0
        assert cumulative[token] >= uniform - 1e-12
        assert token == 0 or cumulative[token - 1] <= uniform + 1e-12


def test_a_draw_from_some_ids_gives_ids() -> None:
    distribution = Distribution.of(np.array([1, 0, 3], np.float32), np.array([4, 9, 70]))
    assert [distribution.draw(u) for u in (0, 0.2499, 0.25, 0.999)] == [4, 4, 70, 70]
    assert [distribution.probability(i) for i in (0, 4, 9, 70, 71)] == [0, 0.25, 0, 0.75, 0]


def test_sums_are_float64() -> None:
    """In float32 the small weights would vanish: 2^24 + 1 is 2^24."""
    weights = np.ones(5000, np.float32)
    weights[0] = 2.0**24
    assert Distribution.of(weights).total == 2**24 + 4999
    assert Distribution.of(weights).draw(1 - 1e-9) == 4999
