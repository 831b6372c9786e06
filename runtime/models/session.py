"""One model of a bundle on ONNX Runtime, with the key-value caches of many texts.

A slot is one row of the caches. They are written in place: past and present are bound to the same memory. A text is
rolled back by calling with a smaller past; nothing is erased. Layers with a window keep the latest entries only: a text
goes back by about as many tokens as a call may add, and beyond that is read again. What a row of a call computes
depends on its own text alone, so calls may be cut and put together in any way.

A model with an encoder has a second graph, which reads the source of a slot's text before anything else is read there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.bundle import Bundle
from mxspec.formats.caches import cache_dtype
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import ModelEntry, ModelName
from mxspec.runtime import ops
from mxspec.runtime.models.caches import Caches
from mxspec.runtime.models.draft_tokens import DraftTokens, Translation
from mxspec.runtime.models.encoder import Encoder
from mxspec.runtime.models.graph import Input, RowBuffer, cache_names, cannot_run, check_agreement, load_graph
from mxspec.runtime.models.part import Part, States, cut
from mxspec.runtime.models.states import GivenStates, ReadStates, stand_in_states
from mxspec.runtime.sampling.shape import Logits


class Session:
    """A graph and its caches, each [slots, kv_heads, capacity, entry]; used by one thread at a time.

    `capacity` is that of texts; the caches of layers with a window hold less (formats/caches.py).
    """

    def __init__(
        self,
        folder: Path,
        entry: ModelEntry,
        real_vocab: int,
        slots: int,
        options: ort.SessionOptions | None = None,
        tokens: DraftTokens | None = None,
    ) -> None:
        """Load a model of the bundle in `folder`; logits from `real_vocab` on are padding and never shown.

        A draft may have a smaller vocabulary: it reads token 0 in place of other tokens and never proposes them. With
        `tokens` its logits are those of few tokens, and it may read tokens of its own.

        options: of session_options(), changed. Raises BundleError where ONNX Runtime does not load it, MxspecError
        where the address space does not hold the caches.
        """
        self.entry = entry
        self.real_vocab = real_vocab
        self.slots = slots
        # The token of each logit, if these are not all; -1 of a draft that writes text, where the target has no such.
        self.head_ids = None if tokens is None else tokens.head_ids
        self.texts = None if tokens is None else tokens.texts
        self._known = entry.vocab_size if tokens is None else tokens.reads
        self.translation = Translation(tokens, slots) if tokens is not None and tokens.foreign else None
        self._wide = np.empty((0, 0), np.float32)
        self.capacity = entry.context_length
        self.first_position = 0  # of every text's first token; a check reads a long context's end without filling it
        self.source_capacity = 0 if entry.encoder is None else entry.encoder.context_length
        self.experts_touched: float | None = None  # of a layer in the last call, the mean of its layers
        self.chunk = max(entry.specializations)  # tokens of a call that reads many
        self._most = entry.call_tokens if entry.windows else self.capacity  # of a text, in a call of the graph
        path, inputs = folder / entry.graph, INPUTS if entry.encoder is None else INPUTS | ENCODED
        self.session = load_graph(path, options)
        check_agreement(path, self.session, inputs, entry)
        self._binding = self.session.io_binding()
        self._caches = [self._caches_of(window) for window in sorted(set(entry.layer_windows))]
        for caches in self._caches:
            caches.bind(self._binding, "past_", "present_")
        self.encoder = None if entry.encoder is None else Encoder(folder, entry, slots, options)
        if self.encoder is not None:
            self.encoder.caches.bind(self._binding, "")
        self._kept = list(self._caches)  # all that a slot keeps of its tokens
        self._inputs = {name: Input(self._binding, name, dtype) for name, dtype in inputs.items()}
        self._logits = RowBuffer(self._binding.bind_ortvalue_output, "logits", entry.vocab_size)
        self.given_states: GivenStates | None = None
        self.read_states: ReadStates | None = None
        if entry.states is not None and entry.states.own is None:
            self.given_states = GivenStates(self._binding, entry.states, slots, self.capacity)
            self._kept.append(self.given_states.kept)
        elif entry.states is not None:
            self.read_states = ReadStates(self._binding, entry.states)

    @classmethod
    def of(cls, bundle: Bundle, name: ModelName, slots: int, options: ort.SessionOptions | None = None) -> Session:
        """A session for the target, the draft or the baseline of a bundle; raises BundleError if it has none."""
        bundle.graph_path(name)
        manifest = bundle.manifest
        entry, vocab_size = manifest.models[name], manifest.tokenizer.vocab_size
        tokens = DraftTokens.of(bundle.path, entry, vocab_size)
        return cls(bundle.path, entry, vocab_size, slots, options, tokens)

    def _caches_of(self, window: int) -> Caches:
        """Those of the layers with this window."""
        entry = self.entry
        layers = [layer for layer, of_layer in enumerate(entry.layer_windows) if of_layer == window]
        shape = (self.slots, entry.kv_heads, entry.capacity_of(window), entry.cache_entry)
        return Caches(cache_names(layers), shape, cache_dtype(entry.caches), window)

    def run(self, parts: Sequence[Part]) -> Logits:
        """One call: append each part's tokens to its slot; float32[sum of rows, real_vocab] in the order of the parts.

        The result is mostly the session's own buffer: the next call writes over it. At least one row is wanted in all.
        """
        logits = self.run_head(parts)
        if self.head_ids is None:
            return logits
        if len(self._wide) < len(logits):
            self._wide = np.full((len(logits), self.real_vocab), -np.inf, np.float32)
        wide = self._wide[: len(logits)]
        named = slice(None) if self.texts is None else np.flatnonzero(self.head_ids >= 0)
        wide[:, self.head_ids[named]] = logits[:, named]
        return wide

    def run_head(self, parts: Sequence[Part]) -> Logits:
        """`run`, but a draft with few tokens gives only their logits: column i is that of token `head_ids[i]`."""
        if self.translation is not None:
            parts = [self._in_own_tokens(part) for part in parts]
        if all(len(part.tokens) <= self._most for part in parts):
            return self._call(parts)
        rows: list[list[Logits]] = [[] for _ in parts]
        states: list[list[States]] = [[] for _ in parts]  # that a text goes on with
        for call in cut(parts, self._most):
            pieces = [piece for _, piece in call]
            if not any(piece.rows for piece in pieces):
                pieces[0] = replace(pieces[0], rows=1, places=[0])  # a call has at least one row
            logits = self._call(pieces).copy()
            ends = accumulate(piece.rows for _, piece in call)
            for (number, piece), end in zip(call, ends, strict=True):
                rows[number].append(logits[end - piece.rows : end])
                if self.read_states is not None:
                    states[number].append(self.read_states.next[end - piece.rows : end].copy())
        if self.read_states is not None:
            self.read_states.next = np.concatenate(list(chain.from_iterable(states)))
        return np.concatenate(list(chain.from_iterable(rows)))

    def _call(self, parts: Sequence[Part]) -> Logits:
        """One call of the graph; float32[rows, tokens of the head], its own buffer."""
        tokens, rows = self._fill(parts)
        logits = self._logits.of(rows)
        if self.given_states is not None:
            self.given_states.begin(tokens)
        if self.read_states is not None:
            self.read_states.begin(parts)
        before = None if self.entry.experts is None else ops.experts_counts()
        try:
            self.session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's own errors have no common base
            raise cannot_run(self.entry.graph, error) from None
        if before is not None:
            touched = ops.experts_counts() - before
            self.experts_touched = touched.experts / max(touched.calls, 1)
        if self.given_states is not None:
            self.given_states.keep(parts)
        if self.head_ids is None and self.real_vocab > self.entry.vocab_size:
            unknown = ((0, 0), (0, self.real_vocab - self.entry.vocab_size))
            return np.pad(logits, unknown, constant_values=-np.inf)
        return logits[:, : self.real_vocab if self.texts is None else self._known]

    def _fill(self, parts: Sequence[Part]) -> tuple[int, int]:
        """Write the inputs of a call, and note what it writes into the caches; its numbers of tokens and of rows."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for part in parts:
            count, begin = len(part.tokens), self.first_position + part.past
            assert part.past + count <= self.capacity, "past the end"
            assert self._holds(part.slot, part.past), "what a ring has lost"
            rows += [len(ids) + place for place in part.wanted]
            ids += part.tokens
            positions += range(begin, begin + count)
        assert rows, "a call without rows has no logits"
        fill = self._inputs
        input_ids = fill["input_ids"].of(1, len(ids))
        input_ids[0] = ids
        if self.real_vocab > self._known:
            input_ids[input_ids >= self._known] = 0
        fill["position_ids"].of(1, len(ids))[0] = positions
        fill["slots"].of(len(parts))[:] = [part.slot for part in parts]
        fill["past_lengths"].of(len(parts))[:] = [part.past for part in parts]
        fill["new_lengths"].of(len(parts))[:] = [len(part.tokens) for part in parts]
        if self.encoder is not None:
            lengths = [self.encoder.lengths[part.slot] for part in parts]
            assert 0 not in lengths, "a text whose source nobody has read"
            fill["encoder_lengths"].of(len(parts))[:] = lengths
        fill["logits_to_keep"].of(len(rows))[:] = rows
        for part in parts:
            for kept in self._kept:
                kept.write(part.slot, part.past, len(part.tokens))
        return len(ids), len(rows)

    def _in_own_tokens(self, part: Part) -> Part:
        """A part in the tokens of a draft with a tokenizer of its own."""
        if part.written:
            return part
        assert self.translation is not None, "a draft with a tokenizer of its own"
        past, tokens, ends = self.translation.read(part.slot, part.past, part.tokens)
        return Part(part.slot, past, tokens, part.rows, places=[end - 1 for end in ends[len(ends) - part.rows :]])

    def _holds(self, slot: int, entries: int) -> bool:
        return all(kept.goes_on(slot, entries) for kept in self._kept)

    def goes_on(self, slot: int, length: int) -> bool:
        """Whether a slot's text can go on after its first `length` tokens: the rings of windows keep the latest."""
        if self.translation is not None:
            length = self.translation.entries(slot, self.translation.agreed(slot, length), [])
        return self._holds(slot, length)

    def fits(self, slot: int, past: int, tokens: Sequence[int]) -> bool:
        """Whether a slot holds these tokens after its first `past`; a draft may need several entries for a token."""
        if self.translation is None:
            return past + len(tokens) <= self.capacity
        return self.translation.entries(slot, past, tokens) <= self.capacity

    def encode(self, sources: Sequence[tuple[int, Sequence[int]]]) -> None:
        """One call of the encoder: read the tokens of each slot's source; what the slots held of others is gone.

        Raises GenerationError where some source has values that the caches cannot hold.
        """
        assert self.encoder is not None, "a model with an encoder"
        self.encoder.encode(sources)

    def copy_prefix(self, source: int, destination: int, length: int, first: int = 0) -> None:
        """Give slot `destination` the first `length` entries of slot `source`, and what they were read under.

        Slot `destination` has the entries before number `first` already. Rings give what they hold.
        """
        if self.encoder is not None:
            self.encoder.copy(source, destination)
        if self.translation is not None:
            length, first = self.translation.copy(source, destination, length, first)
        for kept in self._kept:
            kept.copy(source, destination, length, first)

    def rows(self, slot: int, length: int) -> dict[str, NDArray[Any]]:
        """What a slot's text goes on with after `length` tokens, [kv_heads, rows, entry] by the name of the cache."""
        return {name: rows for kept in self._kept for name, rows in kept.rows(slot, length).items()}

    def put_rows(self, slot: int, rows: Mapping[str, NDArray[Any]], length: int) -> None:
        """Give a slot what rows() gave after `length` tokens, maybe as flat arrays of bytes. Raises MxspecError."""
        if rows.keys() != {name for kept in self._kept for name in kept.arrays}:
            raise MxspecError(f"{self.entry.graph}: got caches of another model")
        for kept in self._kept:
            kept.put_rows(slot, rows, length)

    def slot_bytes(self, tokens: int, source: int = 0) -> int:
        """Bytes of the pages of a slot that holds so many tokens, and what the encoder makes of a source."""
        read = 0 if self.encoder is None else self.encoder.caches.slot_bytes(source)
        return sum(kept.slot_bytes(tokens) for kept in self._kept) + read

    def release(self, slot: int, first: int = 0) -> None:
        """Give the memory of a slot back to the system, from token number `first` on; its entries are zero then."""
        if first and self.translation is not None:
            return  # its entries are not one for each token
        for kept in self._kept:
            kept.release(slot, first)

    def part(self, slot: int, past: int, tokens: Sequence[int], rows: int) -> Part:
        """A part of a check or a measurement: a model that reads states gets some that belong to no text."""
        if self.read_states is None:
            return Part(slot, past, tokens, rows)
        return Part(slot, past, tokens, rows, stand_in_states(self.read_states.size, past, len(tokens)))

    @property
    def caches(self) -> dict[str, NDArray[Any]]:
        """The keys and values of all slots by name, in the order of the windows; a ring where a layer has one."""
        return {name: array for caches in self._caches for name, array in caches.arrays.items()}

    def copy_source(self, source: int, destination: int) -> None:
        """Give slot `destination` what the encoder has made of the source of slot `source`."""
        assert self.encoder is not None, "a model with an encoder"
        self.encoder.copy(source, destination)

    def release_source(self, slot: int) -> None:
        """Give the memory of a slot's source back to the system."""
        assert self.encoder is not None, "a model with an encoder"
        self.encoder.release(slot)


INPUTS: dict[str, type[np.integer[Any]]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "slots": np.int32,
    "past_lengths": np.int32,
    "new_lengths": np.int32,
    "logits_to_keep": np.int64,
}

ENCODED: dict[str, type[np.integer[Any]]] = {"encoder_lengths": np.int32}  # of a model with an encoder
