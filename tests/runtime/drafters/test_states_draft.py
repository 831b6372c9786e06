"""What a draft that reads hidden states gets beside each token: the target's state of the token before, or its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.drafters.draft import StatesDraft
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot

TEXT = list(range(100, 140))


def given(slot: int, first: int, count: int) -> Any:
    """The target's state of token number i of a slot: i, and the slot."""
    return np.array([[i, slot] for i in range(first, first + count)], np.float32).reshape(count, 2)


class Recording:
    """A session that notes what each entry of its cache was made of; its own states are [-entry, slot]."""

    capacity, source_capacity, chunk, head_ids = 64, 0, 16, None

    def __init__(self) -> None:
        self.entries: dict[int, list[tuple[int, list[float]]]] = {}
        self.calls: list[list[int]] = []
        self.read_states = SimpleNamespace(next=np.zeros((0, 2), np.float32))

    def fits(self, slot: int, past: int, tokens: Sequence[int]) -> bool:
        return True

    def run_head(self, parts: Sequence[Part]) -> Any:
        assert len({part.own for part in parts}) == 1
        self.calls.append([len(part.tokens) for part in parts])
        for part in parts:
            held = self.entries.setdefault(part.slot, [])
            assert part.past <= len(held), "an entry was left out"
            assert part.states is not None
            assert len(part.states) == len(part.tokens) > 0
            held[part.past :] = list(zip(part.tokens, part.states.tolist(), strict=True))
        last = [(len(self.entries[part.slot]) - 1, part.slot) for part in parts]
        self.read_states.next = np.array([[-entry, slot] for entry, slot in last], np.float32)
        return np.array([[entry, slot] for entry, slot in last], np.float32)


@pytest.fixture
def session() -> Recording:
    return Recording()


@pytest.fixture
def draft(session: Recording) -> StatesDraft:
    target = SimpleNamespace(given_states=SimpleNamespace(of=given))
    return StatesDraft(session, target)  # type: ignore[arg-type]


def of_target(slot: int, tokens: Sequence[int]) -> list[tuple[int, list[float]]]:
    return [(token, [float(i), float(slot)]) for i, token in enumerate(tokens[1:])]


def test_rounds_read_the_targets_states_first_and_then_their_own(session: Recording, draft: StatesDraft) -> None:
    slots = [Slot(0, target_length=9), Slot(1, target_length=4)]
    rows = draft.run([(slots[0], TEXT[:10], 1), (slots[1], TEXT[:5], 1)])
    assert rows.tolist() == [[8, 0], [3, 1]]
    draft.run([(slot, [7], 1) for slot in slots])
    draft.run([(slots[1], [8], 1)])
    assert session.entries[0] == [*of_target(0, TEXT[:10]), (7, [-8.0, 0.0])]
    assert session.entries[1] == [*of_target(1, TEXT[:5]), (7, [-3.0, 1.0]), (8, [-4.0, 1.0])]
    draft.settle(slots)
    assert [slot.draft_length for slot in slots] == [10, 5]
    slots[0].target_length = 12  # two guesses were kept
    draft.run([(slots[0], TEXT[10:13], 1)])
    assert session.entries[0] == of_target(0, TEXT[:13])
    assert session.calls == [[9, 4], [1, 1], [1], [3]]


def test_tokens_that_a_grammar_forces_are_read_one_after_the_other(session: Recording, draft: StatesDraft) -> None:
    slots = [Slot(0, target_length=3), Slot(1, target_length=2)]
    rows = draft.run([(slots[0], [*TEXT[:4], 7, 8], 1), (slots[1], TEXT[:3], 1)])
    assert rows.tolist() == [[4, 0], [1, 1]]
    assert session.entries[0] == [*of_target(0, TEXT[:4]), (7, [-2.0, 0.0]), (8, [-3.0, 0.0])]
    assert session.calls == [[3, 2], [1], [1]]


def test_a_prompt_is_read_as_far_as_the_target_has(session: Recording, draft: StatesDraft) -> None:
    drafter, slot = ModelDrafter(draft), Slot(0)
    assert drafter.lag(TEXT, slot) == 1
    drafter.read([(TEXT, slot, 16)])
    assert (slot.draft_length, session.calls) == (1, [])  # nothing stands before the first token
    slot.target_length = 16
    assert drafter.lag(TEXT, slot) == 16
    drafter.read([(TEXT, slot, 30)])
    assert session.entries[0] == of_target(0, TEXT[:17])
    slot.rollback(5)  # another text shares the beginning
    drafter.read([([*TEXT[:5], 3], slot, 10)])
    assert session.entries[0] == of_target(0, [*TEXT[:5], 3])
