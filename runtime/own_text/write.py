"""Have a model write texts, as many at a time as its session has slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.models.session import Part, Session
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape

LENGTH = 256  # tokens of a text: a small model loses its thread in longer ones
AT_ONCE = 8  # texts to write at a time
SAMPLING = Sampling(temperature=1.0, top_p=0.95)
"""Near to the model's own distribution. Without top-p, the texts of a small model soon become gibberish."""

Advance = Callable[[int], object]  # gets the number of tokens written since the last call


def text_length(context_length: int) -> int:
    """The tokens of a text that a model of this context writes."""
    return min(LENGTH, context_length)


def open_writer(folder: Path, entry: ModelEntry, known: int, count: int) -> Session:
    """A session of a model in `folder` that writes `count` texts, of ids below `known`; its caches are no longer."""
    short = entry.model_copy(update={"context_length": text_length(entry.context_length)})
    return Session(folder, short, known, min(AT_ONCE, count))


def write_texts(
    session: Session, openings: Sequence[Sequence[int]], count: int, length: int, seed: int, advance: Advance
) -> NDArray[np.int64]:
    """Token ids int64[count, length]: text i continues opening i, counted round the openings.

    An opening that takes more than half of the length loses its beginning. A text goes on after an end-of-text token.
    The same seed, model and openings give the same texts on the same kind of processor.
    """
    texts = np.empty((count, length), np.int64)
    for first in range(0, count, session.slots):
        numbers = range(first, min(first + session.slots, count))
        beginnings = [openings[number % len(openings)][-max(1, length // 2) :] for number in numbers]
        uniforms = [np.random.default_rng([seed, number]).random(length) for number in numbers]
        _write(session, beginnings, uniforms, texts[first : first + len(numbers)], advance)
    return texts


def _write(
    session: Session,
    beginnings: Sequence[Sequence[int]],
    uniforms: Sequence[NDArray[np.float64]],
    texts: NDArray[np.int64],
    advance: Advance,
) -> None:
    for text, beginning in zip(texts, beginnings, strict=True):
        text[: len(beginning)] = beginning
    read, known = [0] * len(texts), [len(beginning) for beginning in beginnings]
    running = list(range(len(texts)))
    advance(sum(known))
    while running := [slot for slot in running if known[slot] < texts.shape[1]]:
        parts = [Part(slot, read[slot], texts[slot, read[slot] : known[slot]].tolist(), 1) for slot in running]
        for slot, logits in zip(running, session.run(parts), strict=True):
            read[slot] = known[slot]
            texts[slot, known[slot]] = shape(logits, SAMPLING).draw(float(uniforms[slot][known[slot]]))
            known[slot] += 1
        advance(len(running))
