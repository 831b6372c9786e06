"""Two texts read in every way that a runtime reads: prompts in pieces, single steps, scored rows, rollback, company."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mxspec.runtime.session import Part, Session

Logits = npt.NDArray[np.float32]
Text = tuple[int, ...]

SLOTS = 5  # that a session needs
_TAKEN = (4, 1)  # of the two texts
_CALLS = (
    ("prefill", (23, 17)),
    ("prefill", (9, 20)),
    ("a single step", (1, 1)),
    ("a single step", (1, 1)),
    ("scoring", (5, 3)),
    ("scoring", (2, 4)),
)  # new tokens of each text
_ROLLED_BACK = (4, 1)
LENGTH = 72  # tokens of a text
assert all(sum(new[text] for _, new in _CALLS) < LENGTH for text in range(2))


@dataclass(frozen=True, slots=True)
class Reading:
    """Logits after the tokens of `text` from `first` on, float32[rows, vocab], and the way they were read."""

    way: str
    text: Text
    first: int
    logits: Logits


def random_texts(vocab_size: int, length: int = LENGTH) -> tuple[Text, ...]:
    """Four texts: two, and what those become after their rollback."""
    rows = np.random.default_rng(0).integers(0, vocab_size, (4, length)).tolist()
    return tuple(tuple(row) for row in rows)


def read_texts(session: Session, texts: Sequence[Text]) -> Iterator[Reading]:
    """Read the first two of four texts of the same length, then go back and on with the other two.

    Where texts are short, the calls that do not fit are left out. The caches are full of NaN before: what nobody wrote
    may not be read.
    """
    for cache in session.caches.values():
        cache.fill(np.nan)
    past = [0, 0]
    for way, new in _CALLS:
        ends = [min(p + n, len(text)) for p, n, text in zip(past, new, texts, strict=False)]
        yield from _call(session, way, texts[:2], past, ends)
        past = ends
    kept = [max(0, p - back) for p, back in zip(past, _ROLLED_BACK, strict=True)]
    changed = [text[:k] + other[k:] for text, other, k in zip(texts[:2], texts[2:], kept, strict=True)]
    yield from _call(session, "rollback", changed, kept, [len(text) for text in changed])


def _call(session: Session, way: str, texts: Sequence[Text], begin: list[int], end: list[int]) -> Iterator[Reading]:
    """One call with every row of both texts' new tokens; of those that have some."""
    stretches = zip(_TAKEN, texts, begin, end, strict=True)
    given = [(slot, text, first, last) for slot, text, first, last in stretches if last > first]
    if not given:
        return
    parts = [Part(slot, first, text[first:last], last - first) for slot, text, first, last in given]
    rows = np.split(session.run(parts).copy(), np.cumsum([part.rows for part in parts])[:-1])
    for (_, text, first, _), logits in zip(given, rows, strict=True):
        yield Reading(way, text, first, logits)
