"""The interval of a mean over dependent tokens: as Student's t has it, and how often it holds the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import ttest_1samp

from mxspec.evaluate.accuracy.judge import BLOCK, block_starts, mean_interval


def test_equal_blocks_are_student_t_of_their_means() -> None:
    values = np.random.default_rng(0).normal(1, 2, 20 * BLOCK)
    found = mean_interval(values, block_starts([len(values)]))
    expected = ttest_1samp(values.reshape(20, BLOCK).mean(axis=1), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_the_interval_covers_the_mean_of_dependent_tokens_as_often_as_promised() -> None:
    """AR(1) with a correlation of 0.8 beside a neighbour: 400 texts in documents of unequal lengths."""
    rng, lengths = np.random.default_rng(1), [900, 40, 1300, 700, 10]
    held = naive = 0
    for _ in range(400):
        values = lfilter([1], [1, -0.8], rng.normal(0, 1, sum(lengths)))
        found = mean_interval(values, block_starts(lengths))
        held += found.low <= 0 <= found.high
        naive += abs(values.mean()) <= 1.96 * values.std() / np.sqrt(len(values))
    assert 0.9 < held / 400 < 0.98
    assert naive / 400 < 0.7, "tokens taken as independent promise too much"


def test_no_block_spans_two_documents() -> None:
    assert block_starts([BLOCK + 1, 3, 2 * BLOCK]) == [0, BLOCK, BLOCK + 1, BLOCK + 4, 2 * BLOCK + 4]


def test_equal_models_have_no_width_and_few_blocks_no_end() -> None:
    same = mean_interval(np.zeros(20 * BLOCK), block_starts([20 * BLOCK]))
    assert (same.low, same.high) == (0, 0)
    few = mean_interval(np.ones(5), block_starts([5]))
    assert (few.mean, few.low, few.high) == (1, -np.inf, np.inf)
