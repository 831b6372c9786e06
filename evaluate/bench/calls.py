"""Times of one model's calls, by number of tokens in the call and in the cache."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxspec.evaluate.bench.harness import median, seconds_of
from mxspec.evaluate.bench.machine import Pair, ReadCeiling
from mxspec.formats.bundle import Bundle
from mxspec.runtime import ops
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.weight_reads import expert_bytes, matrix_bytes

CACHED = (128, 1000)
SOURCE = 512  # tokens of the source that an encoder reads
CALL_SECONDS = 0.25  # a trial repeats short calls for about this long and takes their median


@dataclass(frozen=True, slots=True)
class PairedCalls:
    """Calls of the same tokens, each beside a plain read of as many bytes as it reads of the matrices."""

    read_bytes: int
    pairs: list[Pair]


class CallBench:
    """Times of the calls of one text; a call is one run of the session."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.entry = reader.session.entry
        self._rng = np.random.default_rng(0)
        if reader.session.encoder is not None:
            reader.begin(self.random_ids(min(SOURCE, reader.session.source_capacity)))

    def expert_bytes(self, ids: list[int]) -> int:
        """Bytes of the experts that a call of these tokens reads, by the operators' own count; 0 without experts."""
        if self.entry.experts is None:
            return 0
        before = ops.experts_counts()
        self.time_call(ids, 1)
        counted = ops.experts_counts() - before
        return round(expert_bytes(self.entry) * counted.experts / counted.calls / self.entry.experts.count)

    def read_bytes(self, ids: list[int]) -> int:
        """Bytes of the matrices that a call of these tokens reads."""
        return matrix_bytes(self.entry) - expert_bytes(self.entry) + self.expert_bytes(ids)

    def fill(self, cached: int) -> None:
        """Fill or cut the cache to exactly `cached` tokens, which are read again where windows have passed them."""
        if not self.reader.goes_on(min(cached, self.reader.length)):
            self.reader.rollback(0)
        if self.reader.length < cached:
            self.reader.append(self.random_ids(cached - self.reader.length), 1)
        self.reader.rollback(cached)

    def time_call(self, ids: list[int], rows: int) -> float:
        """Seconds of one call with logits of its last `rows` tokens; the cache keeps its length."""
        cached = self.reader.length
        seconds = seconds_of(lambda: self.reader.forward(ids, rows))
        self.fill(cached)
        return seconds

    def seconds(self, tokens: int, cached: int, rows: int | None = None) -> float:
        """Median seconds of calls of `tokens` tokens after `cached`, with logits of the last `rows` (default: all).

        Each call has other tokens, because a mixture's experts would stay in the caches if they were the same.
        """
        self.fill(cached)
        return median([self.time_call(self.random_ids(tokens), rows or tokens) for _ in repeated()])

    def pairs(self, tokens: int, cached: int, rows: int, ceiling: ReadCeiling) -> PairedCalls:
        """Calls of `tokens` tokens after `cached`, logits of the last `rows`, each beside a read of as many bytes."""
        self.fill(cached)
        ids = self.random_ids(tokens)
        read = self.read_bytes(ids)
        pairs = [Pair(self.time_call(ids, rows), read / ceiling.bytes_per_second()) for _ in repeated(2)]
        return PairedCalls(read, pairs)

    def random_ids(self, count: int) -> list[int]:
        """Random tokens: a call takes as long for them as for a real text."""
        return [int(token) for token in self._rng.integers(0, self.entry.vocab_size, count)]


class ModelBench(CallBench):
    """The target of a bundle, opened to be timed."""

    def __init__(self, bundle: Path, threads: int | None = None) -> None:
        if threads is not None:
            ops.set_threads(threads)
        began = time.perf_counter()
        opened = Bundle.open(bundle)
        super().__init__(Reader(Session.of(opened, "target", 1)))
        self.load_seconds = time.perf_counter() - began
        self.weights_path = opened.weights_path("target")
        self.weights_file_bytes = opened.manifest.files[self.entry.weights].bytes


def repeated(calls: int = 1, most: int | None = None) -> Iterator[int]:
    """Count trials for CALL_SECONDS times `calls`: at least 3 trials, and at most `most`."""
    ended = time.perf_counter() + calls * CALL_SECONDS
    for count in itertools.count():
        if count == most or (count >= 3 and time.perf_counter() >= ended):
            return
        yield count
