"""One model of a bundle on ONNX Runtime, with the key-value caches of many texts.

A slot is one row of the caches. They are written in place: past and present are bound to the same memory. A text is
rolled back by calling with a smaller past; nothing is erased. What a row of a call computes depends on its own text
alone, so calls may be cut and put together in any way.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, MxspecError
from mxspec.formats.manifest import ModelEntry, ModelName
from mxspec.runtime import ops
from mxspec.runtime.agreement import check_agreement
from mxspec.runtime.sampling.shape import Logits

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; Python names it from 3.13 on


def session_options() -> ort.SessionOptions:
    """Options for graphs with our operators: those run on their own threads, ONNX Runtime needs only the caller's."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(ops.library_path()))
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_prepacking", "1")  # prepacking copies weights out of the mapping
    return options


@dataclass(frozen=True, slots=True)
class Part:
    """What one text adds to a call: `tokens` after the `past` valid entries of its slot.

    Logits are wanted after the last `rows` of them; 0 where a piece of a prompt is only read.
    """

    slot: int
    past: int
    tokens: Sequence[int]
    rows: int


class Session:
    """A graph and its caches, each [slots, kv_heads, capacity, head_size]; used by one thread at a time."""

    def __init__(
        self, folder: Path, entry: ModelEntry, real_vocab: int, slots: int, options: ort.SessionOptions | None = None
    ) -> None:
        """Load a model of the bundle in `folder`; logits from `real_vocab` on are padding and never shown.

        A model that knows fewer tokens, as a draft may, reads token 0 in place of those and never says them.

        options: of session_options(), changed. Raises BundleError where ONNX Runtime does not load it, MxspecError
        where the address space does not hold the caches.
        """
        self.entry = entry
        self.real_vocab = real_vocab
        self.slots = slots
        self.capacity = entry.context_length
        self.first_position = 0  # of every text; a check reads the end of a long context without filling it
        self.chunk = max(entry.specializations)  # tokens a call, where there are many
        path = folder / entry.graph
        try:
            self.session = ort.InferenceSession(
                str(path), options or session_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own errors have no common base
            said = " ".join(str(error).split())
            raise BundleError(
                f"{path}: ONNX Runtime does not load it: {said}; if another mxspec wrote the bundle, compile it again"
            ) from None
        check_agreement(path, self.session, INPUTS, entry)
        self._binding = self.session.io_binding()
        self._memory: list[mmap.mmap] = []  # of each cache
        self.caches = {name: self._make_cache() for name in _cache_names(entry)}
        self._values = [self._bind_cache(name, cache) for name, cache in self.caches.items()]
        self._inputs = {name: _Input(self._binding, name, dtype) for name, dtype in INPUTS.items()}
        self._logits = _Output(self._binding, "logits", entry.vocab_size)

    @classmethod
    def of(cls, bundle: Bundle, name: ModelName, slots: int, options: ort.SessionOptions | None = None) -> Session:
        """A session for the target, the draft or the baseline of a bundle; raises BundleError if it has none."""
        bundle.graph_path(name)
        manifest = bundle.manifest
        return cls(bundle.path, manifest.models[name], manifest.tokenizer.vocab_size, slots, options)

    def run(self, parts: Sequence[Part]) -> Logits:
        """One call: append each part's tokens to its slot; float32[sum of rows, real_vocab] in the order of the parts.

        The result is mostly the session's own buffer: the next call writes over it. At least one row is wanted in all.
        """
        counts = [len(part.tokens) for part in parts]
        tokens, rows = sum(counts), sum(part.rows for part in parts)
        assert rows > 0, "a call without rows has no logits"
        assert all(part.past + count <= self.capacity for part, count in zip(parts, counts, strict=True)), (
            "past the end"
        )
        fill = self._inputs
        ids = fill["input_ids"].of(1, tokens)
        ids[0] = list(chain.from_iterable(part.tokens for part in parts))
        if self.real_vocab > self.entry.vocab_size:
            ids[ids >= self.entry.vocab_size] = 0
        begins = [self.first_position + part.past for part in parts]
        fill["position_ids"].of(1, tokens)[0] = list(
            chain.from_iterable(range(begin, begin + count) for begin, count in zip(begins, counts, strict=True))
        )
        fill["slots"].of(len(parts))[:] = [part.slot for part in parts]
        fill["past_lengths"].of(len(parts))[:] = [part.past for part in parts]
        fill["new_lengths"].of(len(parts))[:] = counts
        ends = np.cumsum(counts)
        fill["logits_to_keep"].of(rows)[:] = list(
            chain.from_iterable(range(end - part.rows, end) for part, end in zip(parts, ends.tolist(), strict=True))
        )
        logits = self._logits.of(rows)
        self.session.run_with_iobinding(self._binding)
        if self.real_vocab > self.entry.vocab_size:
            unknown = ((0, 0), (0, self.real_vocab - self.entry.vocab_size))
            return np.pad(logits, unknown, constant_values=-np.inf)
        return logits[:, : self.real_vocab]

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        """Give slot `destination` the first `length` entries of slot `source`."""
        for cache in self.caches.values():
            cache[destination, :, :length] = cache[source, :, :length]

    def release(self, slot: int) -> None:
        """Give the memory of a slot back to the system; its entries are zero afterwards."""
        size = next(iter(self.caches.values()))[slot].nbytes
        first = -(-slot * size // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (slot + 1) * size // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            for memory in self._memory:
                memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _make_cache(self) -> NDArray[Any]:
        """Zeros that cost memory page by page as they are written.

        NumPy's own would come in pages of 2 MiB where the system has those: in a long context the first token would
        then cost so much in every layer and head.
        """
        entry, dtype = self.entry, np.dtype(self.entry.cache_dtype)
        shape = (self.slots, entry.kv_heads, self.capacity, entry.head_size)
        size = math.prod(shape) * dtype.itemsize
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except (OSError, OverflowError) as error:
            raise MxspecError(
                f"caches: {size >> 20} MiB of address space for {list(shape)} are not to be had ({error}); "
                "use fewer slots, or a shorter context"
            ) from None
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._memory.append(memory)
        return np.frombuffer(memory, dtype).reshape(shape)

    def _bind_cache(self, name: str, cache: NDArray[Any]) -> Any:
        value = ort.OrtValue.ortvalue_from_numpy(cache)
        self._binding.bind_ortvalue_input(f"past_{name}", value)
        self._binding.bind_ortvalue_output(f"present_{name}", value)
        return value


def _cache_names(entry: ModelEntry) -> list[str]:
    return [f"{kind}.{layer}" for layer in range(entry.layers) for kind in ("key", "value")]


INPUTS: dict[str, type[np.integer[Any]]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "slots": np.int32,
    "past_lengths": np.int32,
    "new_lengths": np.int32,
    "logits_to_keep": np.int64,
}


class _Input:
    """A small input, with an array of each shape it has had: bound again only where the shape changes."""

    def __init__(self, binding: Any, name: str, dtype: type[np.integer[Any]]) -> None:
        self._binding, self._name, self._dtype = binding, name, dtype
        self._made: dict[tuple[int, ...], tuple[NDArray[Any], Any]] = {}
        self._bound: tuple[int, ...] = ()

    def of(self, *shape: int) -> NDArray[Any]:
        """The array of that shape, which the next call reads."""
        if shape not in self._made:
            array = np.zeros(shape, self._dtype)
            self._made[shape] = array, ort.OrtValue.ortvalue_from_numpy(array)
        array, value = self._made[shape]
        if shape != self._bound:
            self._binding.bind_ortvalue_input(self._name, value)
            self._bound = shape
        return array


class _Output:
    """The logits: one buffer, as large as the largest call wanted, of which a call takes the rows that it needs."""

    def __init__(self, binding: Any, name: str, vocab: int) -> None:
        self._binding, self._name, self._vocab = binding, name, vocab
        self._buffer = np.zeros((0, vocab), np.float32)
        self._value: Any = None

    def of(self, rows: int) -> Logits:
        """float32[rows, vocab], which the next call writes."""
        if rows > len(self._buffer):
            self._buffer = np.zeros((rows, self._vocab), np.float32)
            self._value = None
        view = self._buffer[:rows]
        if self._value is None or self._value.shape()[0] != rows:
            self._value = ort.OrtValue.ortvalue_from_numpy(view)
            self._binding.bind_ortvalue_output(self._name, self._value)
        return view
