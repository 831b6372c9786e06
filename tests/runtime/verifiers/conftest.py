"""Texts of the toys, many at a time, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.events import Token
from mxspec.runtime.models.draft_tokens import DraftTokens
from tests.runtime.verifiers.exact import Logits, Probs, number_of

SLOTS = 32  # texts at a time

CountTexts = Callable[..., Probs]


class Reader:
    """Reads a text's first tokens, then cancels it: drafters that learn from answers see no more of it."""

    def __init__(self, length: int) -> None:
        self.text: Any = None
        self.tokens: list[int] = []
        self.errors: list[BaseException] = []
        self._length = length

    def put(self, *events: Any) -> None:
        """The outbox of its text."""
        self.tokens += [event.id for event in events if isinstance(event, Token)]
        self.errors += [event for event in events if isinstance(event, BaseException)]
        self.text.cancelled = len(self.tokens) >= self._length


@pytest.fixture(scope="session")
def count_texts(toys: Any) -> CountTexts:
    """`count` below."""

    def count(
        target_logits: Logits,
        draft_logits: Logits,
        prompt: list[int],
        length: int,
        seeds: Iterable[int],
        *,
        k: int,
        make: Callable[[Any], Drafter] | None = None,
        tokens: DraftTokens | None = None,
        **how: Any,
    ) -> Probs:
        """How often each text of `length` tokens came up, float64[vocab ** length]: a text a seed, in one scheduler.

        `make` makes the drafter of the draft's session; without it the draft itself drafts. `tokens` are the draft's.
        """
        target = toys.Session(target_logits, slots=SLOTS)
        draft = toys.Session(draft_logits, slots=SLOTS, tokens=tokens)
        if make is not None:
            how["drafter"] = make(draft)
        limit = length + k + 1  # so that no round that counts is cut short
        scheduler, readers = toys.scheduler(target, draft, prefill_ms=1e3), []
        for seed in seeds:
            readers.append(Reader(length))
            given = {"max_new_tokens": limit, **how}
            readers[-1].text = scheduler.make(readers[-1], prompt, k=k, seed=seed, **given)
            scheduler.add([readers[-1].text])
            while scheduler.waiting > SLOTS:
                scheduler.step()
        scheduler.run()
        counts = np.zeros(target.real_vocab**length)
        for reader in readers:
            assert not reader.errors, reader.errors
            counts[number_of(reader.tokens[:length], target.real_vocab)] += 1
        return counts

    return count
