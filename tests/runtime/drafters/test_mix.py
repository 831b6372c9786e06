"""The mix: which of its members proposes, by what they promise and cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Choice, Proposal, Wanted
from mxspec.runtime.drafters.mix import MixDrafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.events import Round, Token
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import BreakEven
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper

VOCAB = 30


def origins(toys: Any, target: Any, draft: Any, prompt: list[int], **settings: Any) -> Counter[str]:
    made = MixDrafter([SuffixDrafter()], ModelDrafter(Draft(draft)))
    events = toys.generate(toys.Session(target), draft, prompt, drafter=made, max_new_tokens=40, **settings)
    return Counter(event.origin for event in events if isinstance(event, Token))


def forward(text: tuple[int, ...]) -> Any:
    """Counts on, round and round."""
    row = np.zeros(VOCAB, np.float32)
    row[(text[-1] + 1) % VOCAB] = 9
    return row


def test_the_model_guesses_where_nothing_repeats_and_is_right(toys: Any) -> None:
    found = origins(toys, forward, toys.Session(forward), [1], k=4)
    assert found["model"] > found["suffix"]


def test_a_copy_is_taken_where_the_text_repeats_and_the_model_is_wrong(toys: Any) -> None:
    wrong = toys.random_logits(VOCAB, 2)
    found = origins(toys, forward, toys.Session(wrong), [*range(VOCAB)], k="auto")
    assert found["suffix"] > 20
    assert found["model"] == 0


def test_a_model_that_takes_longer_than_the_target_is_not_asked_again(toys: Any) -> None:
    def slow(text: tuple[int, ...]) -> Any:
        time.sleep(0.005)
        return forward(text)

    assert origins(toys, forward, toys.Session(slow), [1], k="auto")["model"] <= 8  # one round shows what it takes


class Sure:
    """A session whose rows are all the same, and sure."""

    capacity = chunk = 1 << 20
    source_capacity = 0
    head_ids = None

    def fits(self, slot: int, past: int, tokens: Sequence[int]) -> bool:
        return True

    def run_head(self, parts: Sequence[Part]) -> Any:
        return np.repeat(forward((6,))[None], len(parts), axis=0)


class Rounds:
    """Rounds of a text that repeats nothing; the target takes `seconds` a step and keeps the model's guesses or not."""

    def __init__(self, seconds: float) -> None:
        model = ModelDrafter(Draft(Sure()))  # type: ignore[arg-type]
        self.drafter, self.seconds = MixDrafter([SuffixDrafter()], model), seconds
        self.begin()

    def begin(self) -> None:
        self.tokens, self.slot = [1], Slot(0)
        self.memory = self.drafter.begin(self.tokens, "")

    def by_model(self, count: int, right: bool) -> list[int]:
        """In which of so many rounds the model guessed."""
        asked = []
        for place in range(count):
            want = Wanted(
                tokens=self.tokens,
                slot=self.slot,
                shaper=Shaper(Sampling(), self.tokens, vocab_size=VOCAB, eos=()),
                choice=Choice(),
                draws=Draws(0, 0, len(self.tokens)),
                k=2,
                memory=self.memory,
                break_even=BreakEven(row=0.05, start=0.05),
                proposal=Proposal(),
            )
            self.drafter.propose([want])
            drafted = len(want.proposal.tokens)
            accepted = drafted if right else 0
            done = Round(drafted, min(accepted + 1, drafted), accepted, accepted + 1, 0.0, self.seconds, self.seconds)
            self.drafter.observe(self.memory, done)
            if drafted:
                assert set(want.proposal.origins) == {"model"}
                asked.append(place)
            self.tokens.append(VOCAB + len(self.tokens))
            self.slot.draft_length = len(self.tokens) - 1
        return asked


@pytest.mark.parametrize(("seconds", "most"), [(1e-9, 1), (10.0, 8)])  # a model that takes long, and one for nothing
def test_a_model_that_never_pays_is_tried_within_the_budget(seconds: float, most: int) -> None:
    rounds = Rounds(seconds)
    rounds.by_model(400, right=False)
    assert len(rounds.by_model(1500, right=False)) <= most
    rounds.begin()
    assert len(rounds.by_model(300, right=False)) <= 1  # the next text knows


def test_the_model_drafts_again_once_it_pays() -> None:
    rounds = Rounds(10.0)
    rounds.by_model(300, right=False)
    assert len(rounds.by_model(300, right=False)) < 10
    found = rounds.by_model(3000, right=True)
    assert found[-900:] == list(range(2100, 3000))


def test_its_text_is_the_targets(toys: Any) -> None:
    target, draft = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    plain = [e.id for e in toys.generate(toys.Session(target), None, [1], k=0) if isinstance(e, Token)]
    session = toys.Session(toys.mixed_logits(draft, target, 0.7))
    for k in (3, "auto"):
        made = MixDrafter([SuffixDrafter()], ModelDrafter(Draft(session)))
        events = toys.generate(toys.Session(target), session, [1], drafter=made, k=k)
        assert [event.id for event in events if isinstance(event, Token)] == plain
