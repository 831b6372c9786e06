"""Log-probabilities against float64, of raw rows and of shaped distributions."""

from __future__ import annotations

import numpy as np
import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.logprobs import raw_logprob, shaped_logprob
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape


@pytest.mark.parametrize("vocab", [1, 5, 700, 30_000])
def test_raw_ones_are_log_softmax(vocab: int) -> None:
    logits = (4 * np.random.default_rng(vocab).standard_normal(vocab)).astype(np.float32)
    wide = logits.astype(np.float64)
    want = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    got = raw_logprob(logits, vocab // 2, 5)
    assert got.logprob == pytest.approx(want[vocab // 2], abs=2e-6)
    best = sorted(range(vocab), key=lambda i: (-wide[i], i))[:5]
    assert [i for i, _ in got.top] == best
    np.testing.assert_allclose([value for _, value in got.top], want[best], atol=2e-6)
    assert raw_logprob(logits, 0).top == ()


def test_ties_of_the_best_go_to_the_lowest_id() -> None:
    logits = np.array([0, 3, 1, 3, 3, 1], np.float32)
    assert [i for i, _ in raw_logprob(logits, 0, 4).top] == [1, 3, 4, 2]
    assert [i for i, _ in shaped_logprob(shape(logits, Sampling(1.0)), 0, 4).top] == [1, 3, 4, 2]


def test_shaped_log_probabilities_come_from_the_sampled_distribution() -> None:
    logits = np.array([0, 3, 1, 3, -np.inf, 1], np.float32)
    distribution = shape(logits, Sampling(0.5, top_k=4, top_p=0.99999))
    weights = np.exp(np.array([6.0, 6.0, 2.0, 2.0]))
    want = np.log(weights / weights.sum())
    got = shaped_logprob(distribution, 2, 9)
    assert got.logprob == pytest.approx(want[2], abs=1e-6)
    assert [i for i, _ in got.top] == [1, 3, 2, 5]  # not more than can be drawn
    np.testing.assert_allclose([value for _, value in got.top], want, atol=1e-6)
    assert shaped_logprob(distribution, 0).logprob == -np.inf


def test_a_choice_that_is_certain() -> None:
    got = shaped_logprob(Distribution.point(9), 9, 3)
    assert (got.token, got.logprob, got.top) == (9, 0.0, ((9, 0.0),))


def test_a_token_that_cannot_be_is_not_among_the_best() -> None:
    got = raw_logprob(np.array([-np.inf, 0], np.float32), 0, 2)
    assert got.logprob == -np.inf
    assert got.top == ((1, 0.0),)


def test_rows_with_nan_are_errors() -> None:
    with pytest.raises(GenerationError, match="NaN"):
        raw_logprob(np.array([0, np.nan], np.float32), 0)
