"""Tail probabilities, and what tests say together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from mxspec.evaluate.significance import holm_corrected, lag_tail, rejected_beyond, sum_of, sum_tail


def test_neighbours_of_independent_numbers_are_not_correlated_and_those_of_others_are() -> None:
    rng = np.random.default_rng(5)
    found = [lag_tail(rng.random((6, 50)).tolist(), 4) for _ in range(400)]
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    alike = [np.repeat(rng.random(25), 2).tolist() for _ in range(6)]
    assert lag_tail(alike, 4) < 1e-6
    assert lag_tail([[0.5, 0.5]], 4) == 1  # too few to say


@pytest.mark.parametrize("places", [1, 2, 5])
def test_the_law_of_a_sum_is_that_of_all_combinations(places: int) -> None:
    laws = np.random.default_rng(places).dirichlet([0.5] * 4, places)
    expected = np.zeros(3 * places + 1)
    for levels in itertools.product(range(4), repeat=places):
        expected[sum(levels)] += np.prod([laws[i, level] for i, level in enumerate(levels)])
    law = sum_of(laws)
    np.testing.assert_allclose(law[: len(expected)], expected, atol=1e-15)
    assert law[len(expected) :].sum() == pytest.approx(0, abs=1e-15)


def test_the_tail_of_a_sum_accuses_no_more_often_than_its_level() -> None:
    law = sum_of(np.random.default_rng(3).dirichlet([0.3] * 5, 40))
    for level in (0.2, 0.01, 1e-4):
        rejected = rejected_beyond(law, level)
        assert law[rejected].sum() <= level
        assert [sum_tail(law, total) <= level for total in range(len(law))] == rejected.tolist()


def test_holm_corrects_for_the_number_of_tests_that_are_left() -> None:
    assert holm_corrected([0.0004, 0.0003, 0.5]) == pytest.approx([0.0009, 0.0009, 0.5])
    assert holm_corrected([0.0003, 0.0006, 0.5]) == pytest.approx([0.0009, 0.0012, 0.5])
    for ps in itertools.permutations((0.01, 0.02, 0.04)):
        assert holm_corrected(ps) == [{0.01: 0.03, 0.02: 0.04, 0.04: 0.04}[p] for p in ps]
    assert holm_corrected([0.9, 0.8]) == [1.0, 1.0]
    assert holm_corrected([]) == []
