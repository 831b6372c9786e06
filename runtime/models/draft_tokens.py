"""The tokens of a draft that does not simply have the target's: what it can propose, and how it reads a text.

The draft's head has a row for each token that it proposes, in the order of the target's ids: a head with fewer rows is
trimmed (FR-Spec, Zhao et al. 2025). If the draft has a tokenizer of its own, each token of the target is read as one
or several of the draft's, and one of two things is proposed (Timor et al. 2025): the tokens whose bytes both have
(token-level intersection), or what the target's tokenizer makes of the text that the draft writes in its own tokens
(string-level exact match). Tokens without a row have probability 0 under the draft, and a text is a certain guess, so
the verifier needs to know nothing of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.safetensors_file import map_arrays

Arrays = Mapping[str, NDArray[Any]]
AMID = -1  # a token of the target ends amid one of the draft's


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """What a draft proposes and reads.

    `head_ids` int64[rows]: the target's id of each row of logits, rising. `reads`: number of ids that the draft knows.
    With a tokenizer of its own, the target's token i is read as `ids[begins[i] : begins[i + 1]]`, and a text begins
    with the ids `start`.

    A draft that writes text has a row for each of its own ids: `texts` are their bytes, empty for special tokens, and
    `head_ids` is -1 where the target has no such token.
    """

    head_ids: NDArray[np.int64]
    reads: int
    begins: NDArray[np.int32] | None = None
    ids: NDArray[np.int32] | None = None
    start: tuple[int, ...] = ()
    texts: tuple[bytes, ...] | None = None

    @classmethod
    def of(cls, bundle: Path, entry: ModelEntry, vocab_size: int) -> Self | None:
        """Those of a model of the bundle, or None if it has the target's. Raises BundleError for an invalid file."""
        if entry.vocabulary is None:
            return None
        file = entry.vocabulary.file
        try:
            return cls.from_arrays(map_arrays(bundle / file), entry.vocab_size, entry.vocabulary.reads, vocab_size)
        except BundleError as error:
            raise BundleError(f"bundle {bundle}: {file}: {error}") from None

    @classmethod
    def from_arrays(cls, arrays: Arrays, rows: int, reads: int, vocab_size: int) -> Self:
        """Checked, for a head of `rows` rows and a target of `vocab_size` ids. Raises BundleError."""
        own, written = {"begins", "ids", "start"}, {"texts", "text_begins"}
        if set(arrays) not in ({"head_ids"}, {"head_ids", *own}, {"head_ids", *own, *written}):
            raise BundleError(
                f"holds {', '.join(sorted(arrays)) or 'nothing'}, expected head_ids, or also {sorted(own)}, "
                f"or also {sorted(written)}"
            )
        texts = _texts(arrays, reads) if "texts" in arrays else None
        head_ids = _head_ids(arrays, rows if texts is None else min(rows, reads), vocab_size, rising=texts is None)
        if len(head_ids) < reads and texts is not None:
            raise BundleError(f"head_ids has {len(head_ids)} ids for {reads} tokens")
        if "begins" not in arrays:
            return cls(head_ids, reads)
        begins, ids, start = (np.asarray(arrays[name], np.int32) for name in ("begins", "ids", "start"))
        if len(begins) != vocab_size + 1 or begins[0] != 0 or begins[-1] != len(ids) or (np.diff(begins) < 1).any():
            raise BundleError(f"begins: expected {vocab_size + 1} rising places from 0 to {len(ids)}")
        for name, known in (("ids", ids), ("start", start)):
            if len(known) and (known.min() < 0 or known.max() >= reads):
                raise BundleError(f"{name}: expected ids from 0 to {reads - 1}")
        return cls(head_ids, reads, begins, ids, tuple(start.tolist()), texts)

    @property
    def foreign(self) -> bool:
        """Whether the draft has a tokenizer of its own."""
        return self.begins is not None

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """The draft's own id of each row of its head: the rows of its checkpoint's head; None if these are all."""
        if self.texts is not None:
            return None
        if self.begins is None or self.ids is None:
            return self.head_ids
        return self.ids[self.begins[self.head_ids]].astype(np.int64)

    def read_as(self, token: int) -> list[int]:
        """The draft's ids for one token of the target."""
        assert self.begins is not None
        assert self.ids is not None
        own: list[int] = self.ids[self.begins[token] : self.begins[token + 1]].tolist()
        return own


def _head_ids(arrays: Arrays, rows: int, vocab_size: int, *, rising: bool) -> NDArray[np.int64]:
    """The target's id of each of so many rows; of a draft that writes text they need not rise, and -1 is no token."""
    head_ids = np.asarray(arrays["head_ids"], np.int64)
    if len(head_ids) != rows:
        raise BundleError(f"head_ids has {len(head_ids)} ids for a head of {rows} rows")
    least = 0 if rising else -1
    if rows and (head_ids.min() < least or head_ids.max() >= vocab_size or (rising and (np.diff(head_ids) <= 0).any())):
        raise BundleError(f"head_ids: expected {'rising ' if rising else ''}ids from {least} to {vocab_size - 1}")
    return head_ids


def _texts(arrays: Arrays, count: int) -> tuple[bytes, ...]:
    """The bytes of `count` tokens. Raises BundleError."""
    begins, texts = np.asarray(arrays["text_begins"], np.int64), np.asarray(arrays["texts"], np.uint8).tobytes()
    if len(begins) != count + 1 or begins[0] != 0 or begins[-1] != len(texts) or (np.diff(begins) < 0).any():
        raise BundleError(f"text_begins: expected {count + 1} places that do not fall, from 0 to {len(texts)}")
    return tuple(texts[begin:end] for begin, end in pairwise(begins.tolist()))


class Translation:
    """Texts of the target's tokens as a draft with its own tokenizer reads them, one in each slot of its caches.

    What the draft has written itself need not end where a token of the target ends: such a token has no number of
    entries, and is read again with those before it, back to a place where both agree.
    """

    def __init__(self, tokens: DraftTokens, slots: int) -> None:
        self._tokens = tokens
        # Entries in the cache after 0, 1, 2 … tokens, or AMID.
        self._ends: list[list[int]] = [[0] for _ in range(slots)]

    def agreed(self, slot: int, length: int) -> int:
        """The most tokens of the slot, up to `length`, after which a token of the draft ends, too."""
        ends = self._ends[slot]
        while ends[length] == AMID:
            length -= 1
        return length

    def write(self, slot: int, past: int, ends: Sequence[int | None]) -> int:
        """Note that the draft has written more tokens after its first `past`: after how many of its own each ends.

        None: amid one, or after more than it has read. Returns the tokens of the slot up to the last that is known.
        """
        known = self._ends[slot]
        del known[past + 1 :]
        known += [AMID if end is None else known[past] + end for end in ends]
        return self.agreed(slot, len(known) - 1)

    def entries(self, slot: int, past: int, tokens: Sequence[int]) -> int:
        """Number of cache entries that a slot has after `past` tokens and these."""
        return self._ends[slot][past] + sum(map(len, self._read(past, tokens)))

    def read(self, slot: int, past: int, tokens: Sequence[int]) -> tuple[int, list[int], list[int]]:
        """Note that a slot reads `tokens` after its first `past`; what it had read beyond them is forgotten.

        Returns the entries before the call, the draft's own ids, and for each token how many of these end it.
        """
        ends = self._ends[slot]
        del ends[past + 1 :]
        own = self._read(past, tokens)
        counts = np.cumsum([len(piece) for piece in own]).tolist()
        ends += [ends[past] + count for count in counts]
        return ends[past], list(chain.from_iterable(own)), counts

    def copy(self, source: int, destination: int, length: int, first: int = 0) -> tuple[int, int]:
        """Give a slot the first `length` tokens of another; the entries of `length` and of `first` tokens."""
        ends = self._ends[source]
        self._ends[destination] = ends[: length + 1]
        return ends[self.agreed(source, length)], ends[self.agreed(source, first)]

    def _read(self, past: int, tokens: Sequence[int]) -> list[list[int]]:
        """The draft's ids for each token; the first token of a text also has what a text begins with."""
        own = [self._tokens.read_as(token) for token in tokens]
        start = list(self._tokens.start)
        if past == 0 and own and own[0] != start:
            own[0] = start + own[0]
        return own
