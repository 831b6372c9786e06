"""Forks: whatever a search goes on with, each slot holds what its text begins with, and no entry is copied in vain."""

from __future__ import annotations

import random

import pytest

from mxspec.runtime.beams.draft_search import leaves
from mxspec.runtime.beams.forks import Forks
from mxspec.runtime.beams.node import Node, common_ancestor

PROMPT = 5


class Memory:
    """What slots hold: of each entry the node that wrote it, or the prompt's."""

    def __init__(self, slots: int) -> None:
        self.entries: list[list[object]] = [[None] * 60 for _ in range(slots)]
        self.copied = 0

    def copy(self, source: int, destination: int, last: int, first: int) -> None:
        assert None not in self.entries[source][:last]
        self.entries[destination][first:last] = self.entries[source][first:last]
        self.copied += last - first

    def write(self, slot: int, past: int, nodes: list[Node]) -> None:
        assert None not in self.entries[slot][:past]
        self.entries[slot][past:] = [None] * (60 - past)
        self.entries[slot][past : past + len(nodes)] = nodes

    def goes_on(self, slot: int, length: int) -> bool:
        return True

    def holds(self, slot: int, node: Node) -> bool:
        return self.entries[slot][: node.length] == [*range(PROMPT), *node.path()]


@pytest.mark.parametrize("seed", range(20))
def test_every_text_continues_from_its_own_entries(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 5)
    memory, root = Memory(9), Node.root(PROMPT)
    forks = Forks(memory.copy, memory.goes_on, root, range(PROMPT))
    memory.entries[0][:PROMPT] = range(PROMPT)
    forks.hold(0, [root])
    live = [root.child(token) for token in range(count)]
    for _ in range(40):
        slots = rng.sample(range(9), rng.randrange(max(count, len(live)), 10))
        lost = [slot for slot in range(9) if slot not in slots and rng.random() < 0.1 and memory.holds(slots[0], root)]
        for slot in lost:
            forks.hold(slot, [])
            memory.entries[slot] = [None] * 60
        places = forks.place([(node, node) for node in live], slots)
        assert len({place.slot for place in places}) == len(places)
        for node, place in zip(live, places, strict=True):
            assert place.slot in slots
            assert place.unread[-1] is node
            assert place.past == node.length - len(place.unread)
            memory.write(place.slot, place.past, place.unread)
        assert all(memory.holds(place.slot, node) for node, place in zip(live, places, strict=True))
        parents = rng.choices(live, k=count)
        live = [parent.child(rng.randrange(50)) for parent in parents]
        live = list(dict.fromkeys(live))


def test_an_only_child_keeps_its_slot_and_others_copy_missing_entries() -> None:
    memory, root = Memory(4), Node.root(PROMPT)
    forks = Forks(memory.copy, memory.goes_on, root, range(PROMPT))
    memory.entries[0][:PROMPT] = range(PROMPT)
    forks.hold(0, [root])

    def read(*nodes: Node) -> list[int]:
        places = forks.place([(node, node) for node in nodes], range(4))
        for place in places:
            memory.write(place.slot, place.past, place.unread)
        return [place.slot for place in places]

    first, second = root.child(1), root.child(2)
    assert read(first, second) == [0, 1]
    assert memory.copied == PROMPT
    assert read(first.child(3), second.child(4)) == [0, 1]
    assert memory.copied == PROMPT
    assert read(second.child(4).child(5), second.child(4).child(6)) == [1, 0]
    assert memory.copied == PROMPT + 2  # the prompt is there


def test_a_node_whose_logits_are_needed_again_is_read_again() -> None:
    memory, root = Memory(2), Node.root(PROMPT)
    forks = Forks(memory.copy, memory.goes_on, root, range(PROMPT))
    forks.hold(0, [root])
    node = root.child(1)
    forks.place([(node.child(2), node)], [0])
    (place,) = forks.place([(node.child(3), node)], [0])
    assert (place.past, place.tokens) == (PROMPT, [1, 3])
    (place,) = forks.place([(node.child(4), node.child(4))], [0])
    assert (place.past, place.tokens) == (PROMPT + 1, [4])


def test_a_text_that_windows_have_passed_is_read_again() -> None:
    memory, root = Memory(3), Node.root(PROMPT)
    lost: set[tuple[int, int]] = set()
    forks = Forks(memory.copy, lambda slot, length: (slot, length) not in lost, root, range(PROMPT))
    forks.hold(0, [root])
    first, second = root.child(1), root.child(2)
    forks.place([(first.child(3), first)], [0])
    lost |= {(0, PROMPT), (0, PROMPT + 1)}
    assert forks.held(second) is None
    kept, again = forks.place([(first.child(3).child(4), first.child(3).child(4)), (second, second)], [0, 1, 2])
    assert (kept.slot, kept.past, kept.tokens) == (0, PROMPT + 2, [4])
    assert (again.past, again.tokens) == (0, [*range(PROMPT), 2])
    (more,) = forks.place([(second.child(5), second.child(5))], [again.slot])
    assert (more.past, more.tokens) == (PROMPT + 1, [5])


def test_common_ancestors() -> None:
    root = Node.root(3)
    one = root.child(1).child(2)
    assert common_ancestor([one]) is one
    assert common_ancestor([one.child(5), one.child(6).child(7)]) is one
    assert common_ancestor([one, root.child(4)]) is root
    assert common_ancestor([one, one.child(9)]) is one
    assert one.child(5).tokens() == [1, 2, 5]
    assert one.child(5).tokens(one) == [5]


@pytest.mark.parametrize("seed", range(20))
def test_a_trellis_asks_for_each_of_its_nodes_once(seed: int) -> None:
    rng = random.Random(seed)
    root = Node.root(PROMPT)
    levels = [[root.child(token) for token in range(rng.randrange(1, 4))]]
    for _ in range(rng.randrange(5)):
        parents = rng.choices(levels[-1], k=rng.randrange(1, 7))
        levels.append(list(dict.fromkeys(parent.child(rng.randrange(9)) for parent in parents)))
    for most in (len(levels[0]), 5, 100):
        if most < len(levels[0]):
            continue
        found = leaves(levels, most)
        scored = [node for leaf in found for node in leaf.scored]
        assert len(found) <= most
        assert len(set(scored)) == len(scored)
        assert set(levels[0]) <= set(scored) <= {node for level in levels for node in level}
        assert all(node in levels[0] or node.parent in scored for node in scored)
        for leaf in found:
            assert leaf.scored == leaf.node.path()[len(leaf.node.path()) - len(leaf.scored) :]
        if most == 100:
            assert set(scored) == {node for level in levels for node in level}
