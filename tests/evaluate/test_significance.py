"""Tail probabilities against SciPy, and what tests say together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from mxspec.evaluate.significance import (
    chi_square_tail,
    holm,
    kolmogorov_tail,
    lag_tail,
    normal_tail,
    rejected_beyond,
    sum_of,
    sum_tail,
)


@pytest.mark.parametrize("degrees", [1, 2, 7, 40, 500])
def test_the_chi_square_tail_is_scipys(degrees: int) -> None:
    for statistic in (0.0, 0.1, degrees / 2, float(degrees), degrees + 1.5, 2.0 * degrees, degrees + 60.0):
        assert chi_square_tail(statistic, degrees) == pytest.approx(stats.chi2.sf(statistic, degrees), rel=1e-9)
    assert chi_square_tail(1e5, degrees) < 1e-300


def test_the_normal_tail_is_on_both_sides() -> None:
    for z in (-6.0, -1.0, 0.0, 2.5):
        assert normal_tail(z) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-12)


@pytest.mark.parametrize(("count", "power"), [(60, 1.0), (400, 1.0), (400, 0.85), (2000, 1.1)])
def test_the_kolmogorov_tail_is_near_the_exact_one(count: int, power: float) -> None:
    values = np.random.default_rng(count).random(count) ** power
    exact = stats.kstest(values, "uniform").pvalue
    assert kolmogorov_tail(values.tolist()) == pytest.approx(exact, rel=0.1, abs=1e-12)


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


def test_holm_stops_at_the_first_that_passes() -> None:
    assert holm({"a": 0.0004, "b": 0.0003, "c": 0.5}, 1e-3) == {"a", "b"}
    assert holm({"a": 0.0006, "b": 0.0003, "c": 0.5}, 1e-3) == {"b"}
    assert holm({"a": 0.0004, "b": 0.0005, "c": 0.5}, 1e-3) == set()
    assert holm({}, 1e-3) == set()
