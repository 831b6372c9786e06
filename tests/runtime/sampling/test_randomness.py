"""Numbers from a counter: numpy's Philox, and each a function of its four keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mxspec.runtime.sampling.randomness import Purpose, philox, uniform


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("counter", [(1, 0, 0, 0), (2**64 - 1, 5, 2**64 - 2, 3), (12345, 2, 0, 2**63)])
def test_philox_equals_numpy(seed: int, counter: tuple[int, int, int, int]) -> None:
    before = (counter[0] - 1, *counter[1:])  # numpy counts up before its first block
    state = {"counter": np.array(before, np.uint64), "key": np.array([seed, 7], np.uint64)}
    assert philox((seed, 7), counter) == tuple(int(word) for word in np.random.Philox(**state).random_raw(4))


def test_every_key_gives_another_number_and_always_the_same() -> None:
    keys = list(itertools.product([0, 1, 5], [0, 1], range(20), Purpose))
    numbers = [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert numbers == [uniform(*key) for key in keys]


def test_numbers_are_uniform_in_each_purpose() -> None:
    for purpose in Purpose:
        numbers = np.array([uniform(3, 0, position, purpose) for position in range(4000)])
        assert numbers.min() >= 0
        assert numbers.max() < 1
        # Chi-square with 15 degrees of freedom: above 61 once in 6 million seeds.
        counts = np.histogram(numbers, bins=16, range=(0, 1))[0]
        assert ((counts - 250) ** 2 / 250).sum() < 61
