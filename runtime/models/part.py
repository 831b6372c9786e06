"""What one text adds to a call of a graph, and how calls are cut that add more to a text than its rings hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Part:
    """What one text adds to a call: `tokens` after the `past` valid entries of its slot.

    Logits are wanted after the last `rows` of them, or after those at `places`, as many; 0 where a piece of a prompt is
    only read. A draft that reads hidden states gets float32[tokens, size] `states` beside them: the target's, or its
    `own` of earlier calls. With `written` they are ids of a draft with a tokenizer of its own, as they are.
    """

    slot: int
    past: int
    tokens: Sequence[int]
    rows: int
    states: States | None = None
    own: bool = False
    written: bool = False
    places: Sequence[int] | None = None

    @property
    def wanted(self) -> Sequence[int]:
        """The places of the tokens after which logits are wanted."""
        return range(len(self.tokens) - self.rows, len(self.tokens)) if self.places is None else self.places


Call = list[tuple[int, Part]]  # by the number of the part that each is of, or is a piece of


def cut(parts: Sequence[Part], most: int) -> list[Call]:
    """The parts as calls in which no text has more than `most` tokens; each call reads something of a text once."""
    calls: list[Call] = []
    for number, part in enumerate(parts):
        for place, piece in enumerate(_pieces(part, most)):
            if place == len(calls):
                calls.append([])
            calls[place].append((number, piece))
    return calls


def _pieces(part: Part, most: int) -> Iterator[Part]:
    for first in range(0, len(part.tokens), most):
        end = min(first + most, len(part.tokens))
        places = [place - first for place in part.wanted if first <= place < end]
        yield replace(
            part,
            past=part.past + first,
            tokens=part.tokens[first:end],
            rows=len(places),
            places=places,
            states=None if part.states is None else part.states[first:end],
        )
