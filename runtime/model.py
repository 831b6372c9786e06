"""One model of a bundle on ONNX Runtime, with its key-value cache.

The cache is written in place: past and present are bound to the same buffers. Rolling back is a smaller length and
nothing else. What a row computes does not depend on how many rows share its call, so callers cut as they like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, GenerationError
from mxspec.formats.manifest import ModelName
from mxspec.runtime import ops
from mxspec.runtime.sampling.shape import Logits

KEPT_CALLS = 16  # prepared calls of different sizes kept for use again


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
class Call:
    """Inputs and outputs of one size, bound once: the arrays are the very memory that ONNX Runtime reads and writes."""

    binding: Any
    values: list[Any]  # ONNX Runtime does not keep what it is bound to
    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    past_lengths: NDArray[np.int32]
    logits: Logits


class Model:
    """A session and the cache of one sequence; `length` tokens of it are valid."""

    def __init__(self, bundle: Bundle, name: ModelName, options: ort.SessionOptions | None = None) -> None:
        """Load it; options: of session_options(), changed. Raises BundleError."""
        self.name = name
        path = bundle.graph_path(name)
        self.entry = bundle.manifest.models[name]
        self.capacity = self.entry.context_length
        self.real_vocab = bundle.manifest.tokenizer.vocab_size  # logits beyond it are padding: never looked at
        self.chunk = max(self.entry.specializations)  # tokens a call, where there are many
        self.length = 0
        self._user: object = None
        try:
            self.session = ort.InferenceSession(
                str(path), options or session_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own errors have no common base
            raise BundleError(f"{path}: ONNX Runtime does not load it: {error}") from None
        self._caches = self._make_caches()
        self._calls: dict[tuple[int, int], Call] = {}

    def begin(self, user: object) -> None:
        """Begin an empty sequence; whoever began one before hears of it from `require`, and reads no wrong cache."""
        self._user = user
        self.length = 0

    def require(self, user: object) -> None:
        """Raise GenerationError if the sequence is no longer the one that `user` began."""
        if self._user is not user:
            raise GenerationError(
                f"engine: the {self.name}'s cache serves another text that was begun since; "
                "finish one text before the next, or use an engine for each"
            )

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append tokens to the sequence and return float32[rows, vocab], the logits behind the last `rows` of them.

        The result is the call's own buffer: the next call of the same size writes over it.
        """
        count = len(tokens)
        assert 0 < count <= self.capacity - self.length, "the caller clamps to the context"
        assert 0 < rows <= count
        call = self._calls.get((count, rows)) or self._prepare(count, rows)
        call.input_ids[0] = tokens
        call.position_ids[0] = np.arange(self.length, self.length + count)
        call.past_lengths[0] = self.length
        self.session.run_with_iobinding(call.binding)
        self.length += count
        return call.logits[0, :, : self.real_vocab]

    def append(self, tokens: Sequence[int], rows: int) -> Logits:
        """forward(), with all that no logits are wanted of in calls of at most `chunk` tokens before it."""
        first = 0
        while len(tokens) - first > max(rows, self.chunk):
            count = min(self.chunk, len(tokens) - first - rows)
            self.forward(tokens[first : first + count], 1)
            first += count
        return self.forward(tokens[first:], rows)

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """Yield the logits behind every token of a new sequence, chunk by chunk; each is the reader's own copy."""
        user = object()
        self.begin(user)
        for start in range(0, len(tokens), self.chunk):
            self.require(user)
            piece = tokens[start : start + self.chunk]
            yield self.forward(piece, len(piece)).copy()

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length

    def _make_caches(self) -> dict[str, Any]:
        """One OrtValue a cache, over zero pages that cost memory only once they are written."""
        shape = (1, self.entry.kv_heads, self.capacity, self.entry.head_size)
        return {
            f"{kind}.{layer}": ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, self.entry.cache_dtype))
            for layer in range(self.entry.layers)
            for kind in ("key", "value")
        }

    def _prepare(self, count: int, rows: int) -> Call:
        logits = np.zeros((1, rows, self.entry.vocab_size), np.float32)
        arrays: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros((1, count), np.int64),
            "position_ids": np.zeros((1, count), np.int64),
            "past_lengths": np.zeros(1, np.int32),
            "new_lengths": np.full(1, count, np.int32),
            "logits_to_keep": np.arange(count - rows, count, dtype=np.int64)[None],
        }
        inputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        output = ort.OrtValue.ortvalue_from_numpy(logits)
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._caches.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        binding.bind_ortvalue_output("logits", output)
        call = Call(
            binding,
            [*inputs.values(), output],
            arrays["input_ids"],
            arrays["position_ids"],
            arrays["past_lengths"],
            logits,
        )
        if len(self._calls) >= KEPT_CALLS:
            self._calls.pop(next(iter(self._calls)))
        self._calls[count, rows] = call
        return call
