"""Run a compiled model at every sequence length that it was compiled for, before anyone else does.

What must hold: logits of the right shape, finite although the cache was full of NaN, and the same bits for a row
whether it came in a call of its own or with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.ops import library_path

PREFIX = 3  # tokens already in the cache when the compared calls begin


def check_specializations(folder: Path, entry: ModelEntry, vocab_size: int, lengths: Sequence[int]) -> None:
    """Run the model of `folder` at each of `lengths`; raises CheckFailed naming the length that fails."""
    model = _Model(folder, entry)
    ordered = sorted({1, *lengths})
    tokens = np.random.default_rng(0).integers(0, vocab_size, ordered[-1] + PREFIX)[: entry.context_length]
    prefix = min(PREFIX, len(tokens) - 1)
    model.run(tokens[:prefix], tokens[prefix : prefix + 1], [1])  # a single step is a specialization too
    for shorter, longer in pairwise(ordered):
        compared = tokens[prefix : prefix + longer]
        together = model.run(tokens[:prefix], compared, [longer])
        apart = model.run(tokens[:prefix], compared, [shorter] * -(-longer // shorter))
        differing = np.flatnonzero((together.view(np.uint32) != apart.view(np.uint32)).any(axis=1))
        if differing.size:
            raise CheckFailed(
                f"{entry.graph}: row {differing[0]} of a call of {longer} tokens is not bit for bit what calls of "
                f"{shorter} give; the bundle would not be lossless"
            )


class _Model:
    """The model with a cache of its own, on ONNX Runtime."""

    def __init__(self, folder: Path, entry: ModelEntry) -> None:
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(library_path()))
        options.intra_op_num_threads = 1  # the operators have their own pool
        self._session = ort.InferenceSession(folder / entry.graph, options, providers=["CPUExecutionProvider"])
        self._entry = entry

    def run(
        self, prefix: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], lengths: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """Logits float32[tokens, vocab] after `prefix`, from calls of these lengths (the last may be shorter)."""
        self._caches = self._empty_caches(len(prefix) + len(tokens))
        if len(prefix):
            self._call(prefix, 0)
        rows = []
        begin = 0
        for length in lengths:
            part = tokens[begin : begin + length]
            if len(part):
                rows.append(self._call(part, len(prefix) + begin))
            begin += length
        return np.concatenate(rows)

    def _call(self, tokens: npt.NDArray[np.int64], past: int) -> npt.NDArray[np.float32]:
        count = len(tokens)
        logits, *presents = self._session.run(
            None,
            {
                "input_ids": tokens[None],
                "position_ids": np.arange(past, past + count)[None],
                "past_lengths": np.array([past], np.int32),
                "new_lengths": np.array([count], np.int32),
                "logits_to_keep": np.arange(count)[None],
                **self._caches,
            },
        )
        self._caches = dict(zip(self._caches, presents, strict=True))
        expected = (1, count, self._entry.vocab_size)
        if logits.dtype != np.float32 or logits.shape != expected:
            raise CheckFailed(
                f"{self._entry.graph}: a call of {count} tokens gave logits {logits.dtype}{list(logits.shape)}, "
                f"expected float32{list(expected)}"
            )
        if not np.isfinite(logits).all():
            raise CheckFailed(f"{self._entry.graph}: a call of {count} tokens gave logits that are not finite")
        return np.asarray(logits[0])

    def _empty_caches(self, capacity: int) -> dict[str, npt.NDArray[np.generic]]:
        """Past keys and values in the order of the graph's outputs, NaN in every slot: none may ever be read."""
        entry = self._entry
        empty = np.full((1, entry.kv_heads, capacity, entry.head_size), np.nan, np.dtype(entry.cache_dtype))
        names = [output.name for output in self._session.get_outputs()[1:]]
        return {name.replace("present_", "past_"): empty for name in names}
