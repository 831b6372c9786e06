"""Texts of the toys, many at a time, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.events import Token
from tests.runtime.verifiers.exact import Logits, Probs, number_of

SLOTS = 32  # texts at a time

CountTexts = Callable[..., Probs]


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
        **how: Any,
    ) -> Probs:
        """How often each text of `length` tokens came up, float64[vocab ** length]: a text a seed, in one scheduler.

        `make` makes the drafter of the draft's session; without it the draft itself drafts.
        """
        target, draft = (toys.Session(logits, slots=SLOTS) for logits in (target_logits, draft_logits))
        if make is not None:
            how["drafter"] = make(draft)
        limit = length + k + 1  # so that no round that counts is cut short
        scheduler, outboxes = toys.scheduler(target, draft, prefill_ms=1e3), []
        for seed in seeds:
            outboxes.append(toys.Outbox())
            given = {"max_new_tokens": limit, **how}
            scheduler.add([toys.sequence(target, draft, outboxes[-1], prompt, k=k, seed=seed, **given)])
        while scheduler.busy:
            scheduler.step()
        counts = np.zeros(target.real_vocab**length)
        for outbox in outboxes:
            errors = [event for event in outbox if isinstance(event, BaseException)]
            assert not errors, errors
            tokens = [event.id for event in outbox if isinstance(event, Token)]
            counts[number_of(tokens[:length], target.real_vocab)] += 1
        return counts

    return count
