"""The texts of a beam search in the slots of one model, and how a text is forked.

A text continues in the slot that holds most of it. If several texts continue from one, one of them keeps the slot, and
the cache entries are copied to another slot for each of the others: only entries that the other slot lacks, so that a
prompt is copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mxspec.runtime.beams.node import Node

Copy = Callable[[int, int, int, int], None]
"""copy(source, destination, length, first): entries first to length of the source; the destination has those before."""


@dataclass(frozen=True, slots=True)
class Place:
    """The slot of a text, which holds its first `past` tokens; `unread` has the other nodes, at least the last."""

    slot: int
    past: int
    unread: list[Node]

    @property
    def tokens(self) -> list[int]:
        return [node.token for node in self.unread]


class Forks:
    """The slots of one model in one search. A slot's path is the root and the nodes that it has read, or empty."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._paths: dict[int, list[Node]] = {}
        self._holders: dict[Node, list[int]] = {}

    def hold(self, slot: int, path: list[Node]) -> None:
        """Note that a slot holds this path from the root on; the path may be empty."""
        before = self._paths.get(slot, [])
        common = _common(before, path)
        for node in before[common:]:
            holders = self._holders[node]
            holders.remove(slot)
            if not holders:
                del self._holders[node]
        for node in path[common:]:
            self._holders.setdefault(node, []).append(slot)
        self._paths[slot] = path

    def path(self, slot: int) -> list[Node]:
        """The path that a slot holds."""
        return self._paths.get(slot, [])

    def held(self, node: Node) -> Node | None:
        """The longest prefix of a text in any slot; None if no slot holds the prompt."""
        above: Node | None = node
        while above is not None and above not in self._holders:
            above = above.parent
        return above

    def place(self, texts: Sequence[tuple[Node, Node]], slots: Sequence[int]) -> list[Place]:
        """Give each text its own slot, out of at least as many, the preferred ones first.

        texts: the last node of each, and the first node on its path whose logits are wanted, which is read again if it
        was read before. The caller must read the unread nodes next: the slots count as holding the texts.
        """
        found = [(node, *self._beginning(node, wanted)) for node, wanted in texts]
        kept = self._keep([above for _, above, _ in found], slots)
        free = [slot for slot in slots if slot not in kept]
        places: list[Place] = []
        for index, (_, above, unread) in enumerate(found):
            slot = kept[index]
            if slot is None:
                slot = self._fork(above, free)
            places.append(Place(slot, above.length, unread))
        for place, (_, above, unread) in zip(places, found, strict=True):  # after all copies
            path = self._paths[place.slot]
            self.hold(place.slot, [*path[: above.length - path[0].length + 1], *unread])
        return places

    def _beginning(self, node: Node, wanted: Node) -> tuple[Node, list[Node]]:
        """The longest prefix of a text in a slot, before the first wanted node, and the unread nodes after it."""
        assert wanted.parent is not None
        above = self.held(wanted.parent)
        assert above is not None, "the prompt is read first"
        return above, node.path(above)

    def _keep(self, beginnings: Sequence[Node], slots: Sequence[int]) -> list[int | None]:
        """For each prefix a slot that holds it, preferably without more; None if all such slots are taken."""
        allowed, kept = set(slots), list[int | None]()
        for node in beginnings:
            holders = [slot for slot in self._holders[node] if slot in allowed]
            slot = min(holders, key=lambda slot: self._paths[slot][-1] is not node, default=None)
            if slot is not None:
                allowed.discard(slot)
            kept.append(slot)
        return kept

    def _fork(self, node: Node, free: list[int]) -> int:
        """Copy a prefix to the free slot that lacks the fewest nodes of it."""
        source = self._holders[node][0]
        path = self._paths[source]
        wanted = path[: node.length - path[0].length + 1]
        common, slot = max(
            ((_common(self.path(slot), wanted), slot) for slot in free), key=lambda pair: pair[0]
        )  # the first of equals
        free.remove(slot)
        self._copy(source, slot, node.length, wanted[common - 1].length if common else 0)
        self.hold(slot, wanted)
        return slot


def _common(first: Sequence[Node], second: Sequence[Node]) -> int:
    """Length of the common prefix of two paths in one tree; after their first difference they share no node."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[middle - 1] is second[middle - 1] else (low, middle - 1)
    return low
