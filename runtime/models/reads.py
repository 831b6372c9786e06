"""What a call of a graph reads of each text, and how calls are cut that add more to a text than its rings hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mxspec.runtime.models.states import States


@dataclass(frozen=True, slots=True)
class Read:
    """What the graph reads of a slot's text: `tokens` after `past` entries; logits are wanted after those at `rows`.

    `states` float32[tokens, size] lie beside them if the graph reads states: a target's, or its `own`.
    """

    slot: int
    past: int
    tokens: Sequence[int]
    rows: Sequence[int]
    states: States | None = None
    own: bool = False


Call = list[tuple[int, Read]]  # by the number of the read that each is of, or is a piece of


def cut(reads: Sequence[Read], most: int) -> list[Call]:
    """The reads as calls in which no text has more than `most` tokens; each call reads something of a text once."""
    calls: list[Call] = []
    for number, read in enumerate(reads):
        for place, piece in enumerate(_pieces(read, most)):
            if place == len(calls):
                calls.append([])
            calls[place].append((number, piece))
    return calls


def _pieces(read: Read, most: int) -> Iterator[Read]:
    for first in range(0, len(read.tokens), most):
        end = min(first + most, len(read.tokens))
        yield replace(
            read,
            past=read.past + first,
            tokens=read.tokens[first:end],
            rows=[row - first for row in read.rows if first <= row < end],
            states=None if read.states is None else read.states[first:end],
        )
