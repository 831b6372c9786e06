"""What a draft guesses of a beam search: the beams of its own search, level by level, and how they are scored.

level 0        1          2         the target's beams, and u beams of the draft a level
the ──────── cat ─────── sat        leaves: "the cat sat", "the cat ran", "the dog", "a": four parts of one call,
 │            └───────── ran        each in a slot of its own; logits of "the" and "the cat" are asked for once
 └────────── dog
a
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxspec.runtime.beams.node import Node


@dataclass(frozen=True, slots=True)
class Width:
    """What the draft's search has: `beams`, for `steps`; 0 and 0 are a plain step of the target."""

    beams: int = 0
    steps: int = 0


PLAIN = Width()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A path of the trellis to its end, and those of its nodes, the last ones, whose logits no other leaf asks for."""

    node: Node
    scored: list[Node]


def leaves(levels: Sequence[Sequence[Node]], most: int) -> list[Leaf]:
    """The leaves of a trellis, `most` at most, which is at least the number of the first level's nodes.

    levels: nodes of rising length, the children of nodes of the level before, each level best first. What would need
    more leaves is left out.
    """
    below: dict[Node, list[Node]] = {node: [] for node in levels[0]}
    count = len(below)
    for level in levels[1:]:
        for node in level:
            assert node.parent is not None
            siblings = below.get(node.parent)
            if siblings is None or (siblings and count == most):
                continue
            count += bool(siblings)
            siblings.append(node)
            below[node] = []
    found: list[Leaf] = []
    for top in levels[0]:
        _collect(top, [], below, found)
    return found


def _collect(node: Node, before: list[Node], below: dict[Node, list[Node]], found: list[Leaf]) -> None:
    """Depth first: `before` are nodes above this one whose logits no leaf asks for yet."""
    asked = [*before, node]
    if not below[node]:
        found.append(Leaf(node, asked))
    for place, child in enumerate(below[node]):
        _collect(child, [] if place else asked, below, found)
