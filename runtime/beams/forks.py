"""The texts of a beam search in the slots of one model, and how a text is forked.

A text continues in the slot that holds most of it. If several texts continue from one, one of them keeps the slot, and
the cache entries are copied to another slot for each of the others: only entries that the other slot lacks, so that a
prompt is copied once. Where no slot can go on after any prefix, because windows have passed it, a text is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mxspec.runtime.beams.node import Node

Copy = Callable[[int, int, int, int], None]
"""copy(source, destination, length, first): entries first to length of the source; the destination has those before."""
GoesOn = Callable[[int, int], bool]
"""goes_on(slot, length): whether the slot's text can go on after its first `length` tokens."""


@dataclass(frozen=True, slots=True)
class Place:
    """The slot of a text, which holds its first `past` tokens; `unread` has the other nodes, at least the last.

    Where the slot holds nothing of a text, its `prompt` comes before them.
    """

    slot: int
    past: int
    unread: list[Node]
    prompt: Sequence[int] = ()

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *(node.token for node in self.unread)]


class Forks:
    """The slots of one model in one search. A slot's path is the root and the nodes that it has read, or empty."""

    def __init__(self, copy: Copy, goes_on: GoesOn, root: Node, prompt: Sequence[int]) -> None:
        self._copy, self._goes_on = copy, goes_on
        self._root, self._prompt = root, prompt
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
        """The longest prefix of a text that a slot goes on after; None if none does, be it only the prompt."""
        above: Node | None = node
        while above is not None and not self._holding(above):
            above = above.parent
        return above

    def _holding(self, node: Node) -> list[int]:
        """The slots that hold a text, and can go on after it."""
        return [slot for slot in self._holders.get(node, ()) if self._goes_on(slot, node.length)]

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
            if above is None:
                places.append(Place(free.pop(), 0, unread, self._prompt))
            else:
                places.append(Place(self._fork(above, free) if slot is None else slot, above.length, unread))
        for place, (_, above, unread) in zip(places, found, strict=True):  # after all copies
            path = self.path(place.slot)
            before = [self._root] if above is None else path[: above.length - path[0].length + 1]
            self.hold(place.slot, [*before, *unread])
        return places

    def _beginning(self, node: Node, wanted: Node) -> tuple[Node | None, list[Node]]:
        """The longest prefix of a text in a slot, before the first wanted node, and the unread nodes after it."""
        assert wanted.parent is not None
        above = self.held(wanted.parent)
        return above, node.path(above)

    def _keep(self, beginnings: Sequence[Node | None], slots: Sequence[int]) -> list[int | None]:
        """For each prefix a slot that holds it, preferably without more; None if all such slots are taken."""
        allowed, kept = set(slots), list[int | None]()
        for node in beginnings:
            holders = [slot for slot in ([] if node is None else self._holding(node)) if slot in allowed]
            slot = min(holders, key=lambda slot: self._paths[slot][-1] is not node, default=None)
            if slot is not None:
                allowed.discard(slot)
            kept.append(slot)
        return kept

    def _fork(self, node: Node, free: list[int]) -> int:
        """Copy a prefix to the free slot that lacks the fewest nodes of it."""
        source = self._holding(node)[0]
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
