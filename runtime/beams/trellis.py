"""The draft's guesses of a beam search: the beams of its own search, level by level, and how they are scored.

level 0        1          2         the target's beams, and u beams of the draft a level
the ──────── cat ─────── sat        leaves: "the cat sat", "the cat ran", "the dog", "a": four parts of one call,
 │            └───────── ran        each in its own slot; the logits of "the" and "the cat" are computed once
 └────────── dog
a
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxspec.runtime.beams.node import Node


@dataclass(frozen=True, slots=True)
class Width:
    """The draft's search: `beams` for `steps` steps; 0 and 0 mean a plain step of the target."""

    beams: int = 0
    steps: int = 0


PLAIN = Width()


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of a path through the trellis, and the path's last nodes, whose logits no other leaf computes."""

    node: Node
    scored: list[Node]


def leaves(levels: Sequence[Sequence[Node]], most: int) -> list[Leaf]:
    """The leaves of a trellis, at most `most`, which is at least the number of nodes in the first level.

    levels: each has the children of nodes of the level before, best first. Nodes that would need more leaves are left
    out.
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
    """Collect leaves, depth first; `before` has the nodes above this one whose logits no leaf computes yet."""
    asked = [*before, node]
    if not below[node]:
        found.append(Leaf(node, asked))
    for place, child in enumerate(below[node]):
        _collect(child, [] if place else asked, below, found)
