"""The encoder of a model: it reads sources, each whole in one call, and leaves their keys and values to the decoder.

The keys and values of each layer of the decoder have caches of their own, a row for each slot. The encoder writes them
in place, once a source; the decoder's graph is bound to the same memory, and only reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort

from mxspec.formats.caches import cache_dtype
from mxspec.formats.errors import GenerationError
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.models.caches import Caches
from mxspec.runtime.models.graph import Input, check_agreement, cross_names, load_graph

T = TypeVar("T")
INPUTS: dict[str, type[np.integer[Any]]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "slots": np.int32,
    "new_lengths": np.int32,
}


class Encoder:
    """An encoder's graph and what it has written, each cache [slots, kv_heads, capacity, entry]."""

    def __init__(self, folder: Path, entry: ModelEntry, slots: int, options: ort.SessionOptions | None = None) -> None:
        """Load the encoder of a model; raises BundleError and MxspecError as Session does."""
        assert entry.encoder is not None, "a model with an encoder"
        self.capacity = entry.encoder.context_length
        self.lengths = [0] * slots  # tokens of the source that each slot holds
        self._readings = [0] * slots  # which reading of a source each slot holds; 0: none
        self._read = 0
        self._vocab = entry.vocab_size
        path = folder / entry.encoder.graph
        self.session = load_graph(path, options)
        check_agreement(path, self.session, INPUTS, entry, encoder=True)
        shape = (slots, entry.kv_heads, self.capacity, entry.cache_entry)
        self.caches = Caches(cross_names(entry.layers), shape, cache_dtype(entry.caches))
        self._binding = self.session.io_binding()
        self.caches.bind(self._binding, "", "present_")
        self._inputs = {name: Input(self._binding, name, dtype) for name, dtype in INPUTS.items()}

    def encode(self, sources: Sequence[tuple[int, Sequence[int]]]) -> None:
        """One call: read the tokens of each slot's source. What is written of one does not depend on the others.

        Raises GenerationError where some source has values that the caches cannot hold.
        """
        counts = [len(tokens) for _, tokens in sources]
        assert all(0 < count <= self.capacity for count in counts), "a source is not empty, and fits"
        fill, total = self._inputs, sum(counts)
        ids = fill["input_ids"].of(1, total)
        ids[0] = list(chain.from_iterable(tokens for _, tokens in sources))
        ids[ids >= self._vocab] = 0  # a draft may have a smaller vocabulary
        fill["position_ids"].of(1, total)[0] = list(chain.from_iterable(map(range, counts)))
        fill["slots"].of(len(sources))[:] = [slot for slot, _ in sources]
        fill["new_lengths"].of(len(sources))[:] = counts
        try:
            self.session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's own errors have no common base
            raise GenerationError("prompt", f"the encoder cannot read it: {' '.join(str(error).split())}") from None
        for (slot, _), count in zip(sources, counts, strict=True):
            self._read += 1
            self.lengths[slot], self._readings[slot] = count, self._read

    def copy(self, source: int, destination: int) -> None:
        """Give slot `destination` what slot `source` holds, unless it has it."""
        if self._readings[destination] == self._readings[source]:
            return
        self.lengths[destination], self._readings[destination] = self.lengths[source], self._readings[source]
        self.caches.copy(source, destination, self.lengths[source])

    def release(self, slot: int) -> None:
        """Give the memory of a slot back to the system; it holds no source afterwards."""
        self.lengths[slot] = self._readings[slot] = 0
        self.caches.release(slot)


def together_or_apart(encode: Callable[[Sequence[T]], None], read: Sequence[T]) -> list[Exception | None]:
    """The error of each text: all are read in one call; if it fails, each in its own, so that a bad one fails alone."""
    try:
        if read:
            encode(read)
        return [None] * len(read)
    except Exception:
        return [_error_of(encode, one) for one in read]


def _error_of(encode: Callable[[Sequence[T]], None], one: T) -> Exception | None:
    try:
        encode([one])
    except Exception as error:
        return error
    return None
