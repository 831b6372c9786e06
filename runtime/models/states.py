"""Hidden states that a target's graph gives of its tokens, and that a draft of the same bundle reads (EAGLE-3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from mxspec.formats.manifest import StatesEntry
from mxspec.runtime.models.caches import Caches
from mxspec.runtime.models.graph import RowBuffer
from mxspec.runtime.models.part import Part, States

_NAME = "states"
_DIFFERENT = 61  # tokens with states of their own, among those that belong to no text


class GivenStates:
    """The states of all tokens that a target has read, slot by slot, beside its caches: float32[tokens, size]."""

    def __init__(self, binding: Any, entry: StatesEntry, slots: int, capacity: int) -> None:
        """Memory is taken as tokens are read. Raises MxspecError where the address space does not hold it."""
        self._output = RowBuffer(binding.bind_ortvalue_output, _NAME, entry.size)
        self.kept = Caches([_NAME], (slots, 1, capacity, entry.size), np.dtype(np.float32))
        self._given: States = np.zeros((0, entry.size), np.float32)

    def begin(self, tokens: int) -> None:
        """Make room for the states of the next call's tokens."""
        self._given = self._output.of(tokens)

    def keep(self, parts: Sequence[Part]) -> None:
        """Keep the states that a call has given of what it read."""
        firsts = accumulate((len(part.tokens) for part in parts), initial=0)
        for part, first in zip(parts, firsts, strict=False):
            count = len(part.tokens)
            self.of(part.slot, part.past, count)[:] = self._given[first : first + count]

    def of(self, slot: int, first: int, count: int) -> States:
        """Those of `count` tokens of a slot from number `first` on, where they are kept."""
        rows: States = self.kept.arrays[_NAME][slot, 0, first : first + count]
        return rows


class ReadStates:
    """The states that a draft reads beside its tokens: in a call all are the target's, or all are its own."""

    def __init__(self, binding: Any, entry: StatesEntry) -> None:
        assert entry.own is not None, "of a draft"
        self.size = entry.size
        sizes = {"states": entry.size, "own_states": entry.own}
        self._inputs = {name: RowBuffer(binding.bind_ortvalue_input, name, size) for name, size in sizes.items()}
        self._output = RowBuffer(binding.bind_ortvalue_output, "next_states", entry.own)
        self.next: States = np.zeros((0, entry.own), np.float32)

    def begin(self, parts: Sequence[Part]) -> None:
        """Bind the states of the next call; `next` will have those with which a text goes on, one for each row."""
        given = [part.states for part in parts if part.states is not None]
        own = {part.own for part in parts}
        assert len(given) == len(parts), "a draft that reads states gets some beside each token"
        assert len(own) == 1, "states of one kind in a call"
        name = "own_states" if own.pop() else "states"
        for each, rows in self._inputs.items():
            bound = rows.of(sum(map(len, given)) if each == name else 0)
            if each == name:
                np.concatenate(given, out=bound)
        self.next = self._output.of(sum(part.rows for part in parts))


def stand_in_states(size: int, first: int, count: int) -> States:
    """float32[count, size] for tokens from number `first` on: random, but the same for a number in every call.

    For calls of a draft without its target: what they take, and whether bits are equal, does not depend on the values.
    """
    rows: States = _random_rows(size)[np.arange(first, first + count) % _DIFFERENT]
    return rows


@cache
def _random_rows(size: int) -> States:
    return np.random.default_rng(size).standard_normal((_DIFFERENT, size), np.float32)
