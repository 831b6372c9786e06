"""The arrays that calls read: the same ones again and again, and not one for every length there is."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from mxspec.runtime.models.graph import Input, RowBuffer


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


def test_rows_are_bound_again_only_where_their_number_changes() -> None:
    binding = Binding()
    rows = RowBuffer(binding.bind_ortvalue_input, "states", 3)
    rows.of(2)[:] = [[1, 2, 3], [4, 5, 6]]
    assert rows.of(2) is rows.of(2)
    assert binding.times == 1
    assert binding.bound.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert rows.of(0).shape == (0, 3)
    assert binding.bound.shape() == [0, 3]
    rows.of(2)
    assert binding.times == 3


def test_rows_of_a_larger_call_take_the_place_of_all_before() -> None:
    binding = Binding()
    rows = RowBuffer(binding.bind_ortvalue_input, "states", 3)
    rows.of(1)[:] = 7
    rows.of(4)[:] = 8
    rows.of(1)[:] = 9
    assert binding.bound.numpy().tolist() == [[9, 9, 9]]
    rows.of(4)
    assert binding.bound.numpy()[:, 0].tolist() == [9, 8, 8, 8]  # one buffer
