"""The keys and values of all slots, layer by layer, in memory that costs nothing until it is written.

A layer with a window keeps the latest entries of a text in a ring: the entry of position p is number p % capacity.

    text      ···· 5 6 7 8 9      capacity 4: the entries 6 to 9 are there; `first` of the slot is 6
    ring      8 9 6 7             back to 8 tokens with a window of 3, the next one sees 6, 7 and itself: it goes on
                                  back to 7 tokens, 5 is missing: the text is read again
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.errors import MxspecError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; Python names it from 3.13 on


class Caches:
    """Arrays of one shape [slots, kv_heads, capacity, entry] by name, which calls read and write in place.

    Entries of a slot are named by their positions in its text. With a window, texts may be longer than the capacity.
    """

    def __init__(
        self, names: Sequence[str], shape: tuple[int, int, int, int], dtype: np.dtype[Any], window: int = 0
    ) -> None:
        """All zeros. Raises MxspecError where the address space does not hold them."""
        self._window, self._capacity = window, shape[2]
        self._firsts = [0] * shape[0]  # of each slot, the first entry that is still there
        self._memory: list[mmap.mmap] = []  # one map for each cache
        self.arrays = {name: self._make(shape, dtype) for name in names}
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.arrays.items()}

    def bind(self, binding: Any, read: str, written: str | None = None) -> None:
        """Bind the caches as inputs of a graph, and as outputs where `written` is given: prefixes of its names."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(read + name, value)
            if written is not None:
                binding.bind_ortvalue_output(written + name, value)

    def write(self, slot: int, past: int, count: int) -> None:
        """Note that a call writes `count` entries after the first `past`."""
        first = self._firsts[slot] if past else 0
        self._firsts[slot] = max(first, past + count - self._capacity)

    def goes_on(self, slot: int, length: int) -> bool:
        """Whether the slot has what the token after the first `length` sees of them."""
        return length == 0 or self._firsts[slot] <= self._seen_after(length)

    def _seen_after(self, length: int) -> int:
        """The first entry that the token after the first `length` sees."""
        return max(0, length - self._window + 1) if self._window else 0

    def copy(self, source: int, destination: int, length: int, first: int = 0) -> None:
        """Give slot `destination` the first `length` entries of slot `source`, as far as they are there.

        Slot `destination` has those before number `first` already, as far as its ring reaches back.
        """
        kept = begin = self._firsts[source]
        if first > begin and self._firsts[destination] <= self._seen_after(length):
            kept, begin = max(self._firsts[destination], length - self._capacity), first
        for cache in self.arrays.values():
            for places in self._places(begin, length):
                cache[destination, :, places] = cache[source, :, places]
        self._firsts[destination] = kept

    def rows(self, slot: int, length: int) -> dict[str, NDArray[Any]]:
        """Copies of the entries that a text goes on with after `length` tokens, or all but the last of them.

        The slot goes on after these. Arrays [kv_heads, entries, entry] by name: of a window, as many as it has tokens.
        """
        places = list(self._places(self._kept_of(length), length))
        return {
            name: np.concatenate([cache[slot, :, part] for part in places], axis=1)
            for name, cache in self.arrays.items()
        }

    def put_rows(self, slot: int, rows: Mapping[str, NDArray[Any]], length: int) -> None:
        """Give a slot what rows() gave, which may be flat arrays of bytes. Raises MxspecError."""
        first = self._kept_of(length)
        for name, cache in self.arrays.items():
            heads, entry = cache.shape[1], cache.shape[3]
            expected = heads * (length - first) * entry * cache.itemsize
            if rows[name].nbytes != expected:
                raise MxspecError(f"{name}: got {rows[name].nbytes} bytes for {length} tokens, expected {expected}")
            given = np.ascontiguousarray(rows[name]).reshape(-1).view(cache.dtype).reshape(heads, -1, entry)
            done = 0
            for places in self._places(first, length):
                count = places.stop - places.start
                cache[slot, :, places] = given[:, done : done + count]
                done += count
        self._firsts[slot] = first

    def _kept_of(self, length: int) -> int:
        """The first entry that rows() gives: that which the last token sees."""
        return max(0, length - self._window) if self._window else 0

    def _places(self, begin: int, end: int) -> Iterator[slice]:
        """Where the entries begin to end - 1 lie: at most a capacity of them, in their order."""
        while begin < end:
            place = begin % self._capacity
            count = min(end - begin, self._capacity - place)
            yield slice(place, place + count)
            begin += count

    def slot_bytes(self, length: int) -> int:
        """Bytes of the pages of a slot with so many entries a head, in all caches."""
        one = next(iter(self.arrays.values()))
        pages = -(-min(length, self._capacity) * one.strides[2] // mmap.PAGESIZE)
        return len(self.arrays) * int(one.shape[1]) * pages * mmap.PAGESIZE

    def release(self, slot: int, first: int = 0) -> None:
        """Give the memory of a slot back to the system, from entry number `first` on; its entries are zero then."""
        first = min(first, self._capacity)  # a ring that is full stays
        one = next(iter(self.arrays.values()))
        of_slot, of_head, of_entry = one.strides[:3]
        # Heads lie side by side: a whole slot is one range.
        heads = [0] if first == 0 else [head * of_head for head in range(one.shape[1])]
        size = of_slot if first == 0 else of_head
        for start in heads:
            begin = -(-(slot * of_slot + start + first * of_entry) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (slot * of_slot + start + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > begin:
                for memory in self._memory:
                    memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _make(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Zeros that cost memory page by page as they are written.

        NumPy's own would come in pages of 2 MiB where the system has those: in a long context the first token would
        then cost 2 MiB in every layer and head.
        """
        size = math.prod(shape) * dtype.itemsize
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except (OSError, OverflowError) as error:
            raise MxspecError(
                f"caches: {size >> 20} MiB of address space for {list(shape)} cannot be reserved ({error}); "
                "use fewer slots, or a shorter context"
            ) from None
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._memory.append(memory)
        return np.frombuffer(memory, dtype).reshape(shape)
