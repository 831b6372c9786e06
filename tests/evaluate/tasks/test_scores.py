"""Intervals and the paired test, by simulation and by counting; ROUGE-2 by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mxspec.evaluate.tasks.scores import bootstrap_mean, paired_p_value
from mxspec.evaluate.tasks.task import rouge_2


def test_the_p_value_is_the_share_of_exchanges_that_are_as_far_off() -> None:
    one, other = np.array([0.5, 0.75, 1.0, 0.25, 1.0]), np.array([0.25, 0.25, 0.75, 0.5, 0.0])
    signs = np.array(list(itertools.product((1, -1), repeat=5)))
    means = signs @ (one - other) / 5
    greater, less = np.mean(means >= means[0] - 1e-12), np.mean(means <= means[0] + 1e-12)
    assert paired_p_value(one, other) == pytest.approx(2 * min(greater, less))
    assert paired_p_value(one, one) == 1.0


def test_the_interval_is_nearly_that_of_the_normal_law() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    found = bootstrap_mean(values, 0.95)
    reach = 1.96 * values.std() / 20
    assert found.low == pytest.approx(values.mean() - reach, abs=0.05)
    assert found.high == pytest.approx(values.mean() + reach, abs=0.05)
    alone = bootstrap_mean(np.array([0.5]), 0.95)
    assert (alone.low, alone.mean, alone.high) == (0.5, 0.5, 0.5)


def test_rouge_2_is_f1_of_pairs_of_words() -> None:
    row = {"document": "", "summary": "the old bridge is closed today"}  # 5 pairs, 2 of them in the answer's 3
    assert rouge_2(row, "The old bridge opened") == pytest.approx(2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5))
    assert rouge_2(row, "") == 0.0
