"""The draft's own search: from the target's beams on, it guesses ahead by the same rules, level by level.

level 0        1          2         the target's beams, and u beams of the draft a level
the ──────── cat ─────── sat        leaves: "the cat sat", "the cat ran", "the dog", "a": four parts of one call,
 │            └───────── ran        each in its own slot; the logits of "the" and "the cat" are computed once
 └────────── dog
a
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mxspec.runtime.beams.forks import Forks
from mxspec.runtime.beams.node import Node, common_ancestor
from mxspec.runtime.beams.shaping import Shaping
from mxspec.runtime.beams.step import continuations, looked_at, select
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot

MOST_BEHIND = 2  # tokens of the common prefix that the draft may read once for each beam


class DraftSearch:
    """The draft beside a search; `live` are the target's beams, `slot` is the search's first slot."""

    def __init__(self, session: Session, root: Node, prompt: Sequence[int]) -> None:
        self.session = session
        self.forks = Forks(session.copy_prefix, session.goes_on, root, prompt)
        self._root, self._prompt = root, prompt

    def lag(self, live: Sequence[Node], slot: Slot) -> int:
        """Number of tokens of the source and of the beams' common prefix that the draft has not read."""
        trunk = _trunk(live)
        if (held := self.forks.held(trunk)) is not None:
            return trunk.length - held.length + slot.draft_unencoded
        return 0 if self._ready(live) else trunk.length - self._prompt_read(slot) + slot.draft_unencoded

    def read(self, live: Sequence[Node], slot: Slot, count: int, usable: Sequence[int]) -> None:
        """Read `count` more tokens of the source, then of the beams' common prefix, in the `usable` slots."""
        trunk = _trunk(live)
        count -= slot.draft_unencoded
        Draft(self.session).encode([slot])
        if slot.undraftable or count <= 0:
            return
        held = self.forks.held(trunk)
        if held is None:
            first = self._prompt_read(slot)
            tokens = self._prompt[first : first + count]
            self.forks.hold(slot.index, [])
            self.session.run([Part(slot.index, first, tokens, 1)])
            slot.draft_length = first + len(tokens)
            if slot.draft_length == len(self._prompt):
                self.forks.hold(slot.index, [self._root])
            return
        next_nodes = trunk.path(held)[:count]
        (place,) = self.forks.place([(next_nodes[-1], next_nodes[0])], usable)
        self.session.run([Part(place.slot, place.past, place.tokens, 1)])

    def guess(
        self,
        live: Sequence[Node],
        scores: Sequence[np.float32],
        slot: Slot,
        width: Width,
        shaping: Shaping,
        usable: Callable[[], Sequence[int]],
    ) -> list[Sequence[Node]]:
        """The beams of the draft's search, level by level, the target's first; an empty list if it cannot read."""
        lag = self.lag(live, slot)
        if not self._ready(live) or lag > MOST_BEHIND:
            self.read(live, slot, lag, usable())  # once, not for each beam
        if slot.undraftable:
            return []
        nodes, levels = live, [live]
        for _ in range(width.steps):
            places = self.forks.place([(node, node) for node in nodes], usable())
            rows = self.session.run([Part(place.slot, place.past, place.tokens, 1) for place in places])
            log_probs = shaping.log_probs(nodes, rows)
            found = continuations(scores, log_probs, looked_at(width.beams, len(shaping.ends)))
            going_on, _ = select(found, width.beams, shaping.ends_of(nodes))
            if not going_on:
                break
            nodes, scores = [nodes[one.parent].child(one.token) for one in going_on], [one.score for one in going_on]
            levels.append(nodes)
        return levels

    def _ready(self, live: Sequence[Node]) -> bool:
        """Whether the draft has read the prompt, and can go on with every beam."""
        return all(self.forks.held(node) is not None for node in live)

    def _prompt_read(self, slot: Slot) -> int:
        """Tokens of the prompt that the draft has read in the slot; none where it read all, and has lost it."""
        return slot.draft_length if slot.draft_length < len(self._prompt) else 0


def _trunk(live: Sequence[Node]) -> Node:
    """The common prefix of all beams, without the last token of any of them."""
    node = common_ancestor(live)
    return node.parent if node in live and node.parent is not None else node


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
