"""Rings: whatever was written, rolled back and copied, a slot that says that it goes on has what a window sees."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mxspec.formats.errors import MxspecError
from mxspec.runtime.models.caches import Caches
from mxspec.runtime.models.part import Part, cut

SLOTS = 3


class Texts:
    """Caches of one head, and the texts that their slots hold, each entry a number of its own."""

    def __init__(self, window: int, capacity: int) -> None:
        self.caches = Caches(["key.0"], (SLOTS, 1, capacity, 2), np.dtype(np.float32), window)
        self.window, self.capacity = window, capacity
        self.texts: list[list[int]] = [[] for _ in range(SLOTS)]
        self.count = 0

    def write(self, slot: int, past: int, count: int) -> None:
        self.caches.write(slot, past, count)
        del self.texts[slot][past:]
        for position in range(past, past + count):
            self.count += 1
            self.texts[slot].append(self.count)
            self.caches.arrays["key.0"][slot, :, position % self.capacity] = self.count

    def check(self, slot: int, length: int) -> None:
        """The token after the first `length` sees the entries of its text."""
        for position in range(max(0, length - self.window + 1), length):
            entry = self.caches.arrays["key.0"][slot, 0, position % self.capacity, 0]
            assert entry == self.texts[slot][position], (slot, length, position)


@pytest.mark.parametrize("seed", range(30))
def test_random_schedules(seed: int) -> None:
    rng = random.Random(seed)
    window, call = rng.choice([1, 2, 5, 9]), rng.choice([1, 4, 7])
    texts = Texts(window, window + call + rng.randrange(3))
    went_on = 0
    for _ in range(400):
        slot, other = rng.sample(range(SLOTS), 2)
        length = rng.randint(0, len(texts.texts[slot]))
        near = max(0, len(texts.texts[slot]) - rng.randint(0, call))
        length = rng.choice([length, near, near, len(texts.texts[slot])])
        if not texts.caches.goes_on(slot, length):
            assert near != length or near < len(texts.texts[slot])
            continue
        went_on += length > texts.capacity
        texts.check(slot, length)
        what = rng.randrange(12)
        if what == 0:
            common = next(
                (i for i in range(length) if texts.texts[other][i : i + 1] != texts.texts[slot][i : i + 1]), length
            )
            texts.caches.copy(slot, other, length, rng.choice([0, common]))
            texts.texts[other] = texts.texts[slot][:length]
            assert texts.caches.goes_on(other, length)
            texts.check(other, length)
        elif what == 1 and length and texts.caches.goes_on(slot, length - 1):
            rows = texts.caches.rows(slot, length)
            assert rows["key.0"].shape[1] == min(length, window)
            texts.caches.put_rows(other, {"key.0": rows["key.0"].reshape(-1).view(np.uint8)}, length)
            texts.texts[other] = texts.texts[slot][:length]
            for goes_on in (length, length - 1):  # the last token is read again for its logits
                if goes_on >= 0:
                    assert texts.caches.goes_on(other, goes_on)
                    texts.check(other, goes_on)
        elif what == 2:
            texts.caches.release(slot, length)
            texts.check(slot, length)
            del texts.texts[slot][length:]
        else:
            texts.write(slot, length, rng.randint(1, call))
    assert went_on


def test_whole_caches_always_go_on() -> None:
    caches = Caches(["key.0"], (1, 1, 10, 2), np.dtype(np.float32))
    caches.write(0, 0, 10)
    assert all(caches.goes_on(0, length) for length in range(11))


def test_a_text_goes_back_by_what_the_ring_has_beside_the_window() -> None:
    caches = Caches(["key.0"], (1, 1, 8, 2), np.dtype(np.float32), window=5)
    caches.write(0, 0, 8)
    caches.write(0, 8, 12)  # 12 to 19 are there
    assert [length for length in range(21) if caches.goes_on(0, length)] == [0, 16, 17, 18, 19, 20]
    caches.write(0, 0, 3)
    assert caches.goes_on(0, 2)


def test_rows_of_another_length_are_refused() -> None:
    caches = Caches(["key.0"], (1, 2, 8, 2), np.dtype(np.float32), window=5)
    with pytest.raises(MxspecError, match=r"key.0: got 48 bytes for 7 tokens, expected 80"):
        caches.put_rows(0, {"key.0": np.zeros((2, 3, 2), np.float32)}, 7)


def test_slots_take_no_more_than_a_ring() -> None:
    caches = Caches(["key.0"], (1, 2, 2048, 32), np.dtype(np.float32), window=1024)
    assert caches.slot_bytes(4096) == caches.slot_bytes(2048) == 2 * 2048 * 32 * 4


def test_calls_are_cut() -> None:
    parts = [Part(4, 10, [1, 2, 3, 4, 5], 2, places=[1, 4]), Part(2, 0, [7], 0)]
    assert cut(parts, 2) == [
        [(0, Part(4, 10, [1, 2], 1, places=[1])), (1, Part(2, 0, [7], 0, places=[]))],
        [(0, Part(4, 12, [3, 4], 0, places=[]))],
        [(0, Part(4, 14, [5], 1, places=[0]))],
    ]
