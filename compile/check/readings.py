"""Read two texts in every way of the runtime: prompts in pieces, steps, scored rows, rollback, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from mxspec.formats.manifest import ModelEntry
from mxspec.formats.tiles import NAN_SCALE
from mxspec.runtime.models.session import Session

Logits = npt.NDArray[np.float32]
Text = tuple[int, ...]

SLOTS = 5  # slots that a session needs
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
SOURCE_LENGTHS = (200, 13, 31)  # at most
assert all(sum(new[text] for _, new in _CALLS) < LENGTH for text in range(2))


@dataclass(frozen=True, slots=True)
class Reading:
    """Logits after the tokens of `text` from `first` on, float32[rows, vocab], and the way they were read.

    `source` is what an encoder had read before; empty for a model without one. `states` float32[rows, size] are what
    the graph gives of hidden states, if it gives any.
    """

    way: str
    text: Text
    first: int
    logits: Logits
    source: Text = ()
    states: Logits | None = None


def random_texts(vocab_size: int, length: int = LENGTH, *, but: int | None = None) -> tuple[Text, ...]:
    """Four texts: two, and what each becomes after a rollback; without the id `but`, which is padding."""
    rows = np.random.default_rng(0).integers(0, vocab_size, (4, length))
    rows[rows == but] = vocab_size - 2 if but == vocab_size - 1 else vocab_size - 1
    return tuple(tuple(row) for row in rows.tolist())


def read_texts(session: Session, texts: Sequence[Text]) -> Iterator[Reading]:
    """Read the first two of four texts of the same length, then go back and on with the other two.

    If texts are short, calls that do not fit are left out. The caches begin full of NaN, because an entry that was
    never written must not be read. An encoder reads a source for each of the two in one call, and then another alone.
    """
    forget(session)
    sources: Sequence[Text] = ((), ())
    if session.encoder is not None:
        *sources, other = _sources(texts, session.encoder.capacity)
        session.encode(list(zip(_TAKEN, sources, strict=True)))
    past = [0, 0]
    for way, new in _CALLS:
        ends = [min(p + n, len(text)) for p, n, text in zip(past, new, texts, strict=False)]
        yield from _call(session, way, texts[:2], past, ends, sources)
        past = ends
    kept = [max(0, p - back) for p, back in zip(past, _ROLLED_BACK, strict=True)]
    changed = [text[:k] + other[k:] for text, other, k in zip(texts[:2], texts[2:], kept, strict=True)]
    yield from _call(session, "rollback", changed, kept, [len(text) for text in changed], sources)
    if session.encoder is not None:
        session.encode([(_TAKEN[1], other)])
        ends = [0, min(_CALLS[0][1][1], len(texts[3]))]
        yield from _call(session, "another source", texts[2:], [0, 0], ends, (sources[0], other))


def shortened(entry: ModelEntry, context_length: int) -> ModelEntry:
    """The entry with caches no longer than the texts."""
    update: dict[str, object] = {"context_length": context_length}
    if entry.encoder is not None:
        longest = min(SOURCE_LENGTHS[0], entry.encoder.context_length)
        update["encoder"] = entry.encoder.model_copy(update={"context_length": longest})
    return entry.model_copy(update=update)


def forget(session: Session) -> None:
    """Fill every slot with NaN, because an entry that was not written since must not be read."""
    encoded = {} if session.encoder is None else session.encoder.caches.arrays
    for cache in (*session.caches.values(), *encoded.values()):
        cache.fill(NAN_SCALE if cache.dtype == np.uint8 else np.nan)


def _sources(texts: Sequence[Text], capacity: int) -> Iterator[Text]:
    """Sources of three lengths, made from the texts; the first is longer than the distances that T5 distinguishes."""
    tokens = tuple(chain.from_iterable(texts[::-1]))
    for number, length in enumerate(SOURCE_LENGTHS):
        yield tokens[number : number + min(length, capacity)]


def _call(
    session: Session, way: str, texts: Sequence[Text], begin: list[int], end: list[int], sources: Sequence[Text]
) -> Iterator[Reading]:
    """Read the new tokens of both texts in one call, if they have some; return every row."""
    stretches = zip(_TAKEN, texts, begin, end, sources, strict=True)
    given = [stretch for stretch in stretches if stretch[3] > stretch[2]]
    if not given:
        return
    parts = [session.part(slot, first, text[first:last], last - first) for slot, text, first, last, _ in given]
    rows = np.split(session.run(parts).copy(), np.cumsum([part.rows for part in parts])[:-1])
    for (slot, text, first, last, source), logits in zip(given, rows, strict=True):
        states = None if session.given_states is None else session.given_states.of(slot, first, last - first).copy()
        yield Reading(way, text, first, logits, source, states)
