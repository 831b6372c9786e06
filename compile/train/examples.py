"""What a head is trained on: texts, the target's states of their tokens, and what the target expects after each.

Each is a file of its own, so that a killed run loses only those in the making.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mxspec.compile.train.texts import TrainingText
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

LIKELIEST = 64  # tokens that are kept of what the target expects: of a whole distribution, next to nothing is left out
HELD_OUT = 10  # one in so many texts measures what the others taught
_LARGEST = 65504.0  # of float16


@dataclass(frozen=True, slots=True)
class Example:
    """One text int32[tokens], whose tokens from `begin` on the target wrote.

    `states` float16[tokens, size] enter the layers that the head reads; `likeliest` int32[tokens, n] are the tokens
    that the target expects after each, the likeliest first, and `logits` float16[tokens, n] theirs, below the largest.
    """

    ids: NDArray[np.int32]
    begin: int
    states: NDArray[np.float16]
    likeliest: NDArray[np.int32]
    logits: NDArray[np.float16]


class Examples:
    """Those in a folder, numbered from 0."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.count = 0
        while self._path(self.count).is_file():
            self.count += 1

    @staticmethod
    def token_bytes(size: int) -> int:
        """Bytes of a token whose states have `size` values."""
        return 4 + 2 * size + 6 * LIKELIEST

    def add(self, example: Example) -> None:
        """Write the next one."""
        beside = self._folder / "part"
        with beside.open("wb") as file:
            np.savez(
                file,
                ids=example.ids,
                begin=np.array(example.begin),
                states=example.states,
                likeliest=example.likeliest,
                logits=example.logits,
            )
        os.replace(beside, self._path(self.count))
        self.count += 1

    def read(self, number: int) -> Example:
        """One of them."""
        with np.load(self._path(number)) as kept:
            return Example(kept["ids"], int(kept["begin"]), kept["states"], kept["likeliest"], kept["logits"])

    def ids(self, number: int) -> tuple[NDArray[np.int32], int]:
        """The tokens of one, and where the target's begin."""
        with np.load(self._path(number)) as kept:
            return kept["ids"], int(kept["begin"])

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06}.npz"


def is_held_out(number: int) -> bool:
    """Whether the text with this number measures, and does not teach."""
    return number % HELD_OUT == HELD_OUT - 1


def read_examples(session: Session, texts: Sequence[TrainingText]) -> list[Example]:
    """Have the target read texts, as many at a time as it has slots."""
    found = []
    for first in range(0, len(texts), session.slots):
        found += _read(session, texts[first : first + session.slots])
    return found


def _read(session: Session, texts: Sequence[TrainingText]) -> list[Example]:
    assert session.given_states is not None
    count = min(LIKELIEST, session.real_vocab)
    likeliest = [np.empty((len(text.ids), count), np.int32) for text in texts]
    logits = [np.empty((len(text.ids), count), np.float16) for text in texts]
    for past in range(0, max(len(text.ids) for text in texts), session.chunk):
        parts = []
        for slot, text in enumerate(texts):
            if tokens := text.ids[past : past + session.chunk]:
                parts.append(Part(slot, past, tokens, len(tokens)))
        values, ids = torch.from_numpy(session.run(parts)).topk(count, dim=-1)
        values = (values - values[:, :1]).clamp(min=-_LARGEST)
        first = 0
        for part in parts:
            rows, end = slice(past, past + part.rows), first + part.rows
            likeliest[part.slot][rows], logits[part.slot][rows] = ids[first:end].numpy(), values[first:end].numpy()
            first = end
    states = session.given_states
    return [
        Example(
            np.array(text.ids, np.int32),
            text.begin,
            np.clip(states.of(slot, 0, len(text.ids)), -_LARGEST, _LARGEST).astype(np.float16),
            likeliest[slot],
            logits[slot],
        )
        for slot, text in enumerate(texts)
    ]
