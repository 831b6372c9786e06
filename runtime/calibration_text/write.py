"""Have a model write texts, as many at a time as its session has slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits, shape

LENGTH = 256  # tokens of a text: a small model loses its thread in longer ones
AT_ONCE = 8  # texts to write at a time
SAMPLING = Sampling(temperature=1.0, top_p=0.95)
"""Near to the model's own distribution. Without top-p, the texts of a small model soon become gibberish."""

Advance = Callable[[int], object]  # gets the number of tokens written since the last call
Choose = Callable[[Logits, int], int]  # the token with this number, by the logits float32[vocab] before it


def text_length(context_length: int, length: int = LENGTH) -> int:
    """The tokens of a text that a model of this context writes, at most `length`."""
    return min(length, context_length)


def open_writer(folder: Path, entry: ModelEntry, known: int, count: int, length: int = LENGTH) -> Session:
    """A session of a model in `folder` that writes `count` texts of ids below `known`; its caches hold `length`."""
    short = entry.model_copy(update={"context_length": text_length(entry.context_length, length)})
    return Session(folder, short, known, min(AT_ONCE, count))


def write_texts(
    session: Session, openings: Sequence[Sequence[int]], count: int, length: int, seed: int, advance: Advance
) -> NDArray[np.int64]:
    """Token ids int64[count, length]: text i continues opening i, counted round the openings.

    An opening that takes more than half of the length loses its beginning. A text goes on after an end-of-text token.
    The same seed, model and openings give the same texts on the same kind of processor.
    """
    beginnings = [openings[number % len(openings)][-max(1, length // 2) :] for number in range(count)]
    choices = [sampled([seed, number], length) for number in range(count)]
    return np.array(continue_texts(session, beginnings, choices, length, advance), np.int64).reshape(count, length)


def sampled(seed: Sequence[int], length: int) -> Choose:
    """Draw tokens by SAMPLING: the same seed draws the same tokens of a text of up to `length`."""
    uniforms = np.random.default_rng(seed).random(length)
    return lambda logits, number: shape(logits, SAMPLING).draw(float(uniforms[number]))


def continue_texts(
    session: Session,
    beginnings: Sequence[Sequence[int]],
    choices: Sequence[Choose],
    length: int,
    advance: Advance,
    ends: Collection[int] = (),
) -> list[list[int]]:
    """Token ids of each text from its beginning to one of the `ends`, or to `length` tokens.

    A text depends on its own beginning and choices only, whatever is written beside it.
    """
    texts = [list(beginning) for beginning in beginnings]
    waiting = [number for number, text in enumerate(texts) if len(text) < length][::-1]
    advance(sum(map(len, texts)))
    writing: dict[int, int] = {}  # the text of each slot
    read = [0] * session.slots
    while writing or waiting:
        for slot in range(session.slots):
            if slot not in writing and waiting:
                writing[slot], read[slot] = waiting.pop(), 0
        parts = [Part(slot, read[slot], texts[number][read[slot] :], 1) for slot, number in writing.items()]
        for (slot, number), logits in zip(list(writing.items()), session.run(parts), strict=True):
            text = texts[number]
            read[slot] = len(text)
            text.append(choices[number](logits, len(text)))
            if len(text) == length or text[-1] in ends:
                del writing[slot]
        advance(len(parts))
    return texts
