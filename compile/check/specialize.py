"""Run a compiled model at every sequence length that it was compiled for, before a user does.

It runs in the runtime's own session, which writes caches in place. Logits must have the right shape and be finite
although the caches began full of NaN. A row must have the same bits alone, in a longer call, and in a batch with other
texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from mxspec.compile.check.readings import Logits, forget, shortened
from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

PREFIX = 3  # tokens already in the cache when the compared calls begin


@dataclass(frozen=True, slots=True)
class _Text:
    """The tokens of a text, and the source that an encoder reads first, if the model has one."""

    tokens: list[int]
    source: list[int]


def check_specializations(folder: Path, entry: ModelEntry, vocab_size: int, lengths: Sequence[int]) -> None:
    """Run the model of `folder` at each of `lengths`; raises CheckFailed naming the length that fails.

    With several lengths, a call with several texts, one of each length, is also checked. An encoder reads their sources
    alone and together.
    """
    ordered = sorted({1, *lengths})
    capacity = min(ordered[-1] + PREFIX, entry.context_length)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab_size, (len(ordered), capacity)).tolist()
    session = Session(folder, shortened(entry, capacity), entry.vocab_size, slots=len(ordered) + 1)  # of what is read
    longest = 0 if session.encoder is None else session.encoder.capacity
    sources = [rng.integers(0, vocab_size, max(1, longest // 2**i)).tolist() for i in range(len(ordered))]
    prefix = min(PREFIX, capacity - 1)
    texts = [_Text(row[: prefix + n], source) for row, n, source in zip(tokens, ordered, sources, strict=True)]
    _read(session, replace(texts[0], tokens=tokens[0][: prefix + 1]), prefix, 1)  # a step is a specialization too
    if len(ordered) > 1:
        _check_lengths(session, replace(texts[0], tokens=tokens[0]), prefix, ordered)
        _check_batch(session, texts, prefix)


def _check_lengths(session: Session, text: _Text, prefix: int, lengths: Sequence[int]) -> None:
    """Compare longer calls with shorter ones of the same tokens."""
    for shorter, longer in pairwise(lengths):
        begin = replace(text, tokens=text.tokens[: prefix + longer])
        together = _read(session, begin, prefix, longer)
        apart = _read(session, begin, prefix, shorter)
        if (row := _first_difference(together, apart)) is not None:
            raise CheckFailed(
                f"{session.entry.graph}: row {row} of a call of {longer} tokens is not bit for bit what calls of "
                f"{shorter} give; the bundle would not be lossless"
            )


def _check_batch(session: Session, texts: list[_Text], prefix: int) -> None:
    """Compare texts of all lengths in one call, in slots out of order, with each text alone in the first slot."""
    alone = [_read(session, text, prefix, len(text.tokens)) for text in texts]
    slots = [*range(2, session.slots, 2), *range(1, session.slots, 2)]
    forget(session)
    _encode(session, dict(zip(slots, texts, strict=True)))
    if prefix:
        _run(session, [session.part(slot, 0, text.tokens[:prefix], 1) for slot, text in zip(slots, texts, strict=True)])
    parts = [
        session.part(slot, prefix, text.tokens[prefix:], len(text.tokens) - prefix)
        for slot, text in zip(slots, texts, strict=True)
    ]
    ends = np.cumsum([part.rows for part in parts])
    for part, expected, got in zip(parts, alone, np.split(_run(session, parts), ends[:-1]), strict=True):
        if (row := _first_difference(got, expected)) is not None:
            raise CheckFailed(
                f"{session.entry.graph}: row {row} of {part.rows} tokens in slot {part.slot}, in a call of "
                f"{len(parts)} texts, is not bit for bit what they give alone; the bundle would not be lossless"
            )


def _read(session: Session, text: _Text, prefix: int, length: int) -> Logits:
    """Logits after each token from `prefix` on, read alone: the prefix in one call, then calls of `length` tokens."""
    forget(session)
    _encode(session, {0: text})
    tokens = text.tokens
    if prefix:
        _run(session, [session.part(0, 0, tokens[:prefix], 1)])
    pieces = [(begin, tokens[begin : begin + length]) for begin in range(prefix, len(tokens), length)]
    return np.concatenate([_run(session, [session.part(0, begin, piece, len(piece))]) for begin, piece in pieces])


def _encode(session: Session, texts: Mapping[int, _Text]) -> None:
    """One call of the encoder for the sources of these slots, if there is one."""
    entry = session.entry.encoder
    if entry is None:
        return
    try:
        session.encode([(slot, text.source) for slot, text in texts.items()])
    except Exception as error:  # ONNX Runtime's own errors have no common base
        lengths = " and ".join(str(len(text.source)) for text in texts.values())
        raise CheckFailed(f"{entry.graph}: a call of {lengths} tokens fails: {' '.join(str(error).split())}") from None


def _run(session: Session, parts: Sequence[Part]) -> Logits:
    """A call's logits, float32[rows, vocab]: a copy, all finite."""
    name = f"{session.entry.graph}: a call of {' and '.join(str(len(part.tokens)) for part in parts)} tokens"
    try:
        logits = session.run(parts).copy()
    except Exception as error:  # ONNX Runtime's own errors have no common base
        raise CheckFailed(f"{name} fails: {' '.join(str(error).split())}") from None
    if not np.isfinite(logits).all():
        raise CheckFailed(f"{name} gave logits with NaN or infinity")
    return logits


def _first_difference(a: Logits, b: Logits) -> int | None:
    rows = np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)).any(axis=1))
    return int(rows[0]) if rows.size else None
