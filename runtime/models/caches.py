"""The keys and values of all slots, layer by layer, in memory that costs nothing until it is written."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.errors import MxspecError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; Python names it from 3.13 on


class Caches:
    """Arrays of one shape [slots, kv_heads, capacity, entry] by name, which calls read and write in place."""

    def __init__(self, names: Sequence[str], shape: tuple[int, int, int, int], dtype: np.dtype[Any]) -> None:
        """All zeros. Raises MxspecError where the address space does not hold them."""
        self._memory: list[mmap.mmap] = []  # one map for each cache
        self.arrays = {name: self._make(shape, dtype) for name in names}
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.arrays.items()}

    def bind(self, binding: Any, read: str, written: str | None = None) -> None:
        """Bind the caches as inputs of a graph, and as outputs where `written` is given: prefixes of its names."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(read + name, value)
            if written is not None:
                binding.bind_ortvalue_output(written + name, value)

    def copy(self, source: int, destination: int, length: int, first: int = 0) -> None:
        """Give slot `destination` the first `length` entries of slot `source`, but for those before number `first`."""
        for cache in self.arrays.values():
            cache[destination, :, first:length] = cache[source, :, first:length]

    def slot_bytes(self, length: int) -> int:
        """Bytes of the pages of a slot with so many entries a head, in all caches."""
        one = next(iter(self.arrays.values()))
        pages = -(-length * one.strides[2] // mmap.PAGESIZE)
        return len(self.arrays) * int(one.shape[1]) * pages * mmap.PAGESIZE

    def release(self, slot: int, first: int = 0) -> None:
        """Give the memory of a slot back to the system, from entry number `first` on; its entries are zero then."""
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
