"""The drafters alone: what they propose, from which distribution, and what a rollback leaves of their cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import NoDrafter, Proposal, Wanted
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.drafters.stopping import level_of, peak_probability, shares_by_level
from mxspec.runtime.events import Round
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import BreakEven
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape
from mxspec.runtime.sampling.shaper import Shaper
from tests.runtime.conftest import make_want

VOCAB = 12
TEXT = [1, 2, 3]


def wanted(
    text: list[int], slot: Slot, k: int, sampling: Sampling | None = None, sample: int = 0, break_even: float = 0.0
) -> Wanted:
    prices = BreakEven(row=break_even, call=break_even + 0.05)
    given: dict[str, Any] = {"slot": slot, "sampling": sampling, "sample": sample, "memory": [], "break_even": prices}
    return make_want(text, k, vocab_size=VOCAB, **given)


def propose(
    model: Any, text: list[int], k: int, sampling: Sampling | None = None, slot: Slot | None = None
) -> Proposal:
    want = wanted(text, slot or Slot(0), k, sampling)
    model.drafter.propose([want])
    return want.proposal


def test_no_drafter_proposes_nothing() -> None:
    want = wanted(TEXT, Slot(0), 3)
    assert NoDrafter().limit(0) == NoDrafter().lag(TEXT, Slot(0)) == 0
    assert NoDrafter().propose([want]) == []
    assert want.proposal == Proposal()


def test_a_greedy_proposal_is_the_models_own_text(toys: Any) -> None:
    logits = toys.random_logits(VOCAB, 1)
    text = list(TEXT)
    for token in propose(toys.Session(logits), TEXT, 5).tokens:
        assert token == logits(tuple(text)).argmax()
        text.append(token)
    assert len(text) == len(TEXT) + 5


def test_a_sampled_proposal_has_the_distributions_of_its_tokens(toys: Any) -> None:
    logits = toys.random_logits(VOCAB, 1)
    sampling = Sampling(temperature=0.8, top_k=4, seed=3)
    proposal = propose(toys.Session(logits), TEXT, 4, sampling)
    assert len(proposal.distributions) == 4
    for i, distribution in enumerate(proposal.distributions):
        expected = shape(logits((*TEXT, *proposal.tokens[:i])), sampling)
        np.testing.assert_array_equal(distribution.ids, expected.ids)
        np.testing.assert_array_equal(distribution.weights, expected.weights)
        assert distribution.probability(proposal.tokens[i]) > 0


def test_texts_share_a_call_for_each_position_and_get_the_same_guesses_as_alone(toys: Any) -> None:
    logits = toys.random_logits(VOCAB, 1)
    session = toys.Session(logits, slots=3)
    sampling = Sampling(temperature=1.0, seed=5)
    texts = [TEXT, [4, 5], [6, 7, 8, 9]]
    wants = [wanted(text, Slot(i), k, sampling) for i, (text, k) in enumerate(zip(texts, (2, 4, 1), strict=True))]
    calls = session.drafter.propose(wants)
    assert [count for count, _ in calls] == [3, 2, 1, 1]
    for want in wants:
        alone = propose(toys.Session(logits), list(want.tokens), want.k, sampling)
        assert want.proposal.tokens == alone.tokens


def test_given_tokens_of_a_proposal_are_read_and_continued(toys: Any) -> None:
    logits = toys.random_logits(VOCAB, 1)
    session = toys.Session(logits)
    want = wanted(TEXT, Slot(0), 2)
    want.proposal.tokens.append(5)  # forced by a grammar, say
    session.drafter.propose([want])
    assert want.proposal.tokens[1] == logits((*TEXT, 5)).argmax()
    assert session.calls[0] == [(0, 0, 4, 1)]


def test_after_a_rollback_only_unknown_tokens_are_fed(toys: Any) -> None:
    session, slot = toys.Session(toys.random_logits(VOCAB, 1)), Slot(0)
    session.drafter.read([(TEXT, slot, 2)])
    assert session.drafter.lag([*TEXT, 4], slot) == 2
    drafted = propose(session, [*TEXT, 4], 3, slot=slot).tokens
    slot.rollback(len(TEXT) + 1 + 1)  # one kept
    session.calls.clear()
    propose(session, [*TEXT, 4, drafted[0], 9], 1, slot=slot)
    assert session.calls == [[(0, len(TEXT) + 2, 1, 1)]]
    slot.rollback(len(TEXT) + 3 + 1)  # all kept: its own last token was never read
    session.calls.clear()
    propose(session, [*TEXT, 4, drafted[0], 9, 5, 6], 1, slot=slot)
    assert session.calls == [[(0, len(TEXT) + 3, 2, 1)]]


def test_the_last_token_proposed_may_lie_one_beyond_the_cache(toys: Any) -> None:
    session = toys.Session(toys.random_logits(VOCAB, 1), capacity=6)
    assert [session.drafter.limit(length) for length in (3, 6, 7, 8)] == [4, 1, 0, 0]
    assert len(propose(session, TEXT, 4).tokens) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_error_ends_only_one_text(toys: Any, temperature: float) -> None:
    good, bad = toys.random_logits(VOCAB, 1), np.full(VOCAB, np.nan, np.float32)
    session = toys.Session(lambda text: bad if text[0] == 4 and len(text) > 2 else good(text), slots=2)
    sampling = Sampling(temperature=temperature, seed=1)
    wants = [wanted(text, Slot(i), 3, sampling) for i, text in enumerate((TEXT, [4, 5]))]
    session.drafter.propose(wants)
    assert [len(want.proposal.tokens) for want in wants] == [3, 1]
    assert [len(want.proposal.errors) for want in wants] == [0, 1]


def peaked(sure: float) -> Any:
    """Rows whose likeliest token has this probability."""
    weights = np.full(VOCAB, (1 - sure) / (VOCAB - 1))
    weights[7] = sure
    return lambda text: np.log(weights).astype(np.float32)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=2)])
def test_it_stops_when_it_is_unsure_unless_k_is_fixed(toys: Any, sampling: Sampling) -> None:
    counts = {}
    for sure in (0.2, 0.7, 0.99):
        for break_even in (0.0, 0.3):
            want = wanted(TEXT, Slot(0), 6, sampling, break_even=break_even)
            toys.Session(peaked(sure)).drafter.propose([want])
            counts[sure, break_even] = len(want.proposal.tokens)
    assert counts[0.2, 0.0] == counts[0.7, 0.0] == counts[0.99, 0.0] == counts[0.99, 0.3] == 6
    assert counts[0.2, 0.3] < counts[0.7, 0.3] < 6


def test_it_learns_its_accuracy_for_each_confidence(toys: Any) -> None:
    """A draft that is sure and wrong soon guesses no more than one call finds out."""
    session, slot = toys.Session(peaked(0.99)), Slot(0)
    for _ in range(60):
        want = wanted(TEXT, slot, 6, break_even=0.3)
        session.drafter.propose([want])
        done = Round(len(want.proposal.tokens), min(1, len(want.proposal.tokens)), 0, 1, 0.0, 0.0, 0.0)
        session.drafter.observe(want.memory, done)
        slot.rollback(len(TEXT) - 1)
    assert len(want.proposal.tokens) == 0
    assert want.memory == []


def test_a_level_starts_from_the_drafts_own_probability() -> None:
    kept = shares_by_level()
    assert kept.share(level_of(0.99)) > 0.95
    assert kept.share(level_of(0.05)) < 0.1
    for _ in range(500):
        kept.observe(level_of(0.99), False)
    assert kept.share(level_of(0.99)) < 0.1
    assert peak_probability(np.array([0, 0, -np.inf], np.float32)) == pytest.approx(0.5)
    assert peak_probability(np.array([np.nan, 0], np.float32)) == 0


FEW = DraftTokens(np.array([1, 4, 5, 9]), VOCAB)


def few(logits: Any) -> Any:
    """The logits of FEW."""
    return lambda text: logits(text)[FEW.head_ids]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_model_of_few_tokens_proposes_these_by_its_own_distribution(toys: Any, penalty: float) -> None:
    logits = toys.random_logits(VOCAB, 1)
    sampling = Sampling(temperature=0.8, top_k=3, seed=3, repetition_penalty=penalty)
    proposal = propose(toys.Session(few(logits), tokens=FEW), TEXT, 4, sampling)
    text = list(TEXT)
    for token, distribution in zip(proposal.tokens, proposal.distributions, strict=True):
        row = np.full(VOCAB, -np.inf, np.float32)
        row[FEW.head_ids] = logits(tuple(text))[FEW.head_ids]
        expected = Shaper(sampling, text, vocab_size=VOCAB, eos=()).distribution(row)
        assert token in FEW.head_ids
        found = [each.probabilities(None, VOCAB) for each in (distribution, expected)]
        np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
        text.append(token)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["model", "hierarchical"])
def test_a_model_of_few_tokens_stops_where_the_text_can_go_on_with_none(
    toys: Any, temperature: float, drafter: str
) -> None:
    logits = toys.random_logits(VOCAB, 1)
    barred = {"temperature": temperature, "logit_bias": {int(token): -np.inf for token in FEW.head_ids}, "seed": 1}
    target, draft = toys.Session(logits), toys.Session(few(logits), tokens=FEW)
    guessing = make_drafters(VOCAB, Draft(draft))[drafter]
    events = toys.generate(target, draft, TEXT, k=3, drafter=guessing, **barred)
    text = toys.tokens(events)
    assert len(text) == 20
    assert not set(text) & set(FEW.head_ids.tolist())


def test_a_text_that_its_own_tokens_make_too_long_is_not_drafted_after(toys: Any) -> None:
    """Token 2 is three of the draft's; the cache holds ten entries."""
    begins = np.cumsum([0, 1, 1, 3, *[1] * (VOCAB - 3)]).astype(np.int32)
    tokens = DraftTokens(FEW.head_ids, 30, begins, np.arange(begins[-1], dtype=np.int32))
    model = toys.Session(few(toys.random_logits(30, 1)), capacity=10, tokens=tokens)
    slot = Slot(0)
    assert len(propose(model, [2, 2, 1], 8, slot=slot).tokens) == 4  # after 7, 8, 9 and 10 entries
    assert not slot.undraftable
    slot = Slot(0)
    assert propose(model, [2, 2, 2, 2], 2, slot=slot).tokens == []
    assert slot.undraftable
