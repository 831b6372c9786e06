"""Numbers from a counter: numpy's Philox, and each a function of its four keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mxspec.runtime.sampling.randomness import Draws, Purpose, philox


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("counter", [(1, 0, 0, 0), (2**64 - 1, 5, 2**64 - 2, 3), (12345, 2, 0, 2**63)])
def test_philox_equals_numpy(seed: int, counter: tuple[int, int, int, int]) -> None:
    before = (counter[0] - 1, *counter[1:])  # numpy counts up before its first block
    state = {"counter": np.array(before, np.uint64), "key": np.array([seed, 7], np.uint64)}
    assert philox((seed, 7), counter) == tuple(int(word) for word in np.random.Philox(**state).random_raw(4))


def test_every_key_gives_another_number_and_always_the_same() -> None:
    keys = list(itertools.product([0, 1, 5], [0, 1], [0, 7], [False, True], range(3), Purpose))

    def number(seed: int, sample: int, first: int, fresh: bool, place: int, purpose: Purpose) -> float:
        return Draws(seed, sample, first, fresh).uniform(place, purpose)

    numbers = [number(*key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert numbers == [number(*key) for key in keys]


def test_a_number_belongs_to_its_position_unless_it_is_fresh() -> None:
    early, late = Draws(3, 0, 10), Draws(3, 0, 12)
    assert early.uniform(4, Purpose.ACCEPT) == late.uniform(2, Purpose.ACCEPT)
    np.testing.assert_array_equal(early.exponentials(4, None, 9), late.exponentials(2, None, 9))
    early, late = Draws(3, 0, 10, fresh=True), Draws(3, 0, 12, fresh=True)
    assert early.uniform(4, Purpose.ACCEPT) != late.uniform(2, Purpose.ACCEPT)


def test_a_tokens_noise_does_not_depend_on_the_other_tokens() -> None:
    every = Draws(3, 0, 10).exponentials(1, None, 50_000)
    ids = np.array([0, 5, 17, 49_999])
    np.testing.assert_array_equal(Draws(3, 0, 10).exponentials(1, ids, 4), every[ids])
    assert every.min() > 0
    # The mean of 50,000 exponentials: 5 standard errors; Kolmogorov's distance: exceeded once in a million seeds.
    assert abs(every.mean() - 1) < 5 / np.sqrt(len(every))
    levels = 1 - np.exp(-np.sort(every))
    assert np.abs(levels - np.arange(len(every)) / len(every)).max() * np.sqrt(len(every)) < 2.7


def test_numbers_are_uniform_in_each_purpose() -> None:
    for purpose in Purpose:
        numbers = np.array([Draws(3, 0, 0).uniform(place, purpose) for place in range(4000)])
        assert numbers.min() >= 0
        assert numbers.max() < 1
        # Chi-square with 15 degrees of freedom: above 61 once in 6 million seeds.
        counts = np.histogram(numbers, bins=16, range=(0, 1))[0]
        assert ((counts - 250) ** 2 / 250).sum() < 61
