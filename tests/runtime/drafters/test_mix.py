"""The mix: which of its members proposes, by what they promise and cost."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from mxspec.runtime.drafters.mix import MixDrafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.events import Token

VOCAB = 30


def origins(toys: Any, target: Any, draft: Any, prompt: list[int], **settings: Any) -> Counter[str]:
    made = MixDrafter([SuffixDrafter()], ModelDrafter(draft))
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


def test_its_text_is_the_targets(toys: Any) -> None:
    target, draft = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    plain = [e.id for e in toys.generate(toys.Session(target), None, [1], k=0) if isinstance(e, Token)]
    session = toys.Session(toys.mixed_logits(draft, target, 0.7))
    for k in (3, "auto"):
        made = MixDrafter([SuffixDrafter()], ModelDrafter(session))
        events = toys.generate(toys.Session(target), session, [1], drafter=made, k=k)
        assert [event.id for event in events if isinstance(event, Token)] == plain
