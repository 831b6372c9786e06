"""Run a compiled model at every sequence length that it was compiled for, before anyone else does.

It runs on the runtime's own session, its caches written in place. What must hold: logits of the right shape, finite
although the caches were full of NaN, and the same bits for a row whether it came in a call of its own, with others of
its text, or in the company of other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.session import Part, Session

PREFIX = 3  # tokens already in the cache when the compared calls begin

Logits = npt.NDArray[np.float32]


def check_specializations(folder: Path, entry: ModelEntry, vocab_size: int, lengths: Sequence[int]) -> None:
    """Run the model of `folder` at each of `lengths`; raises CheckFailed naming the length that fails.

    Where there are several lengths, a call of several texts is checked, too: one of each length.
    """
    ordered = sorted({1, *lengths})
    capacity = min(ordered[-1] + PREFIX, entry.context_length)
    tokens = np.random.default_rng(0).integers(0, vocab_size, (len(ordered), capacity)).tolist()
    entry = entry.model_copy(update={"context_length": capacity})  # caches no longer than what is read here
    session = Session(folder, entry, entry.vocab_size, slots=len(ordered) + 1)
    prefix = min(PREFIX, capacity - 1)
    _read(session, tokens[0][: prefix + 1], prefix, 1)  # a single step is a specialization too
    if len(ordered) > 1:
        _check_lengths(session, tokens[0], prefix, ordered)
        _check_company(session, [row[: prefix + n] for row, n in zip(tokens, ordered, strict=True)], prefix)


def _check_lengths(session: Session, text: list[int], prefix: int, lengths: Sequence[int]) -> None:
    """Longer calls against shorter ones of the same tokens."""
    for shorter, longer in pairwise(lengths):
        together = _read(session, text[: prefix + longer], prefix, longer)
        apart = _read(session, text[: prefix + longer], prefix, shorter)
        if (row := _first_difference(together, apart)) is not None:
            raise CheckFailed(
                f"{session.entry.graph}: row {row} of a call of {longer} tokens is not bit for bit what calls of "
                f"{shorter} give; the bundle would not be lossless"
            )


def _check_company(session: Session, texts: list[list[int]], prefix: int) -> None:
    """Texts of all lengths in one call, in slots out of order, against each alone in the first slot."""
    alone = [_read(session, text, prefix, len(text)) for text in texts]
    slots = [*range(2, session.slots, 2), *range(1, session.slots, 2)]
    _forget(session)
    if prefix:
        _run(session, [Part(slot, 0, text[:prefix], 1) for slot, text in zip(slots, texts, strict=True)])
    parts = [Part(slot, prefix, text[prefix:], len(text) - prefix) for slot, text in zip(slots, texts, strict=True)]
    ends = np.cumsum([part.rows for part in parts])
    for part, expected, got in zip(parts, alone, np.split(_run(session, parts), ends[:-1]), strict=True):
        if (row := _first_difference(got, expected)) is not None:
            raise CheckFailed(
                f"{session.entry.graph}: row {row} of {part.rows} tokens in slot {part.slot}, in a call of "
                f"{len(parts)} texts, is not bit for bit what they give alone; the bundle would not be lossless"
            )


def _read(session: Session, text: list[int], prefix: int, length: int) -> Logits:
    """Logits after each token from `prefix` on of a text read alone: the prefix at once, then calls of `length`."""
    _forget(session)
    if prefix:
        _run(session, [Part(0, 0, text[:prefix], 1)])
    pieces = [(begin, text[begin : begin + length]) for begin in range(prefix, len(text), length)]
    return np.concatenate([_run(session, [Part(0, begin, piece, len(piece))]) for begin, piece in pieces])


def _run(session: Session, parts: Sequence[Part]) -> Logits:
    """A call's logits, float32[rows, vocab]: a copy, all finite."""
    name = f"{session.entry.graph}: a call of {' and '.join(str(len(part.tokens)) for part in parts)} tokens"
    try:
        logits = session.run(parts).copy()
    except Exception as error:  # ONNX Runtime's own errors have no common base
        raise CheckFailed(f"{name} fails: {' '.join(str(error).split())}") from None
    if not np.isfinite(logits).all():
        raise CheckFailed(f"{name} gave logits that are not finite")
    return logits


def _forget(session: Session) -> None:
    """NaN in every entry of every slot: what nobody wrote since may not be read."""
    for cache in session.caches.values():
        cache.fill(np.nan)


def _first_difference(a: Logits, b: Logits) -> int | None:
    rows = np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)).any(axis=1))
    return int(rows[0]) if rows.size else None
