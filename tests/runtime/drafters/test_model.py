"""The drafters alone: what they propose, from which distribution, and what a rollback leaves of their cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.none import NoDrafter
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape

VOCAB = 12
TEXT = [1, 2, 3]


def test_no_drafter_proposes_nothing() -> None:
    assert NoDrafter().limit(0) == 0
    assert NoDrafter().propose(TEXT, 0, Sampling()).tokens == []


def test_a_greedy_proposal_is_the_models_own_text(toys: Any) -> None:
    logits = toys.random_logits(VOCAB, 1)
    drafter = ModelDrafter(toys.Model(logits))
    drafter.prefill(TEXT[:-1])
    text = list(TEXT)
    for token in drafter.propose(TEXT, 5, Sampling()).tokens:
        assert token == logits(tuple(text)).argmax()
        text.append(token)


def test_a_sampled_proposal_comes_with_the_distributions_it_was_drawn_from(toys: Any) -> None:
    logits = toys.random_logits(VOCAB, 1)
    sampling = Sampling(temperature=0.8, top_k=4, seed=3)
    proposal = ModelDrafter(toys.Model(logits)).propose(TEXT, 4, sampling)
    for i, distribution in enumerate(proposal.distributions):
        expected = shape(logits((*TEXT, *proposal.tokens[:i])), sampling)
        np.testing.assert_array_equal(distribution.ids, expected.ids)
        np.testing.assert_array_equal(distribution.weights, expected.weights)
        assert distribution.probability(proposal.tokens[i]) > 0


def test_a_rollback_feeds_only_what_is_not_known(toys: Any) -> None:
    model = toys.Model(toys.random_logits(VOCAB, 1))
    drafter = ModelDrafter(model)
    drafter.prefill(TEXT)
    drafted = drafter.propose([*TEXT, 4], 3, Sampling()).tokens
    drafter.rollback(len(TEXT) + 1 + 1)  # one kept
    model.calls.clear()
    drafter.propose([*TEXT, 4, drafted[0], 9], 1, Sampling())
    assert model.calls == [(len(TEXT) + 2, 1, 1)]
    drafter.rollback(len(TEXT) + 3 + 1)  # all kept: its own last token was never read
    model.calls.clear()
    drafter.propose([*TEXT, 4, drafted[0], 9, 5, 6], 1, Sampling())
    assert model.calls == [(len(TEXT) + 3, 2, 1)]


def test_the_last_token_proposed_may_lie_one_beyond_the_cache(toys: Any) -> None:
    drafter = ModelDrafter(toys.Model(toys.random_logits(VOCAB, 1), capacity=6))
    assert [drafter.limit(length) for length in (3, 6, 7, 8)] == [4, 1, 0, 0]
    assert len(drafter.propose(TEXT, 4, Sampling()).tokens) == 4
