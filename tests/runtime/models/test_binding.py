"""The arrays that calls read: the same ones again and again, and not one for every length there is."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from mxspec.runtime.models.binding import Input


class Binding:
    """What ONNX Runtime was told to read last, and how often it was told."""

    def __init__(self) -> None:
        self.bound: Any = None
        self.times = 0

    def bind_ortvalue_input(self, _name: str, value: Any) -> None:
        self.bound = value
        self.times += 1


def test_an_input_keeps_few_of_its_arrays() -> None:
    given = Input(Binding(), "input_ids", np.int64)
    tracemalloc.start()
    for length in range(1, 2049):
        given.of(1, length)[0] = length
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4 << 20  # of 16 MiB, one array a length


def test_an_array_is_made_and_bound_once_while_its_shape_is_in_use() -> None:
    binding = Binding()
    given = Input(binding, "input_ids", np.int64)
    step = given.of(1, 3)
    for length in range(4, 2000):
        assert given.of(1, length).shape == (1, length)
        assert given.of(1, 3) is step
    assert given.of(1, 3) is step
    step[0] = [5, 6, 7]
    assert binding.bound.numpy().tolist() == [[5, 6, 7]]
    assert binding.times == 1 + 2 * 1996
