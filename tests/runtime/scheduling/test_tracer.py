"""What a trace says of rounds, held against what the rounds did and what the models are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.events import Event, Round, Token
from mxspec.runtime.sampling.distribution import Distribution

VOCAB = 30
PROMPT = [3, 1, 4, 1, 5]
TEMPERATURE = 0.7


def softmax(row: Any, temperature: float = 1.0) -> Any:
    weights = np.exp(row.astype(np.float64) / temperature)
    return weights / weights.sum()


@pytest.fixture(params=["greedy", "mrs", "block", "match"])
def written(request: Any, toys: Any) -> tuple[Any, Any, float, list[Event]]:
    """The models of a pair, the temperature at which they are compared, and what they wrote together."""
    target, other = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    draft = toys.mixed_logits(other, target, 0.6)
    greedy = request.param == "greedy"
    settings = {"temperature": 0.0} if greedy else {"temperature": TEMPERATURE, "seed": 5, "verifier": request.param}
    pair = toys.Session(target), toys.Session(draft)
    events = list(toys.generate(*pair, PROMPT, k=4, max_new_tokens=40, traced=True, **settings))
    return target, draft, 1.0 if greedy else TEMPERATURE, events


def test_a_trace_has_both_models_probabilities_and_the_verdict_on_each_guess(
    written: tuple[Any, Any, float, list[Event]],
) -> None:
    target, draft, temperature, events = written
    text, new = list(PROMPT), []
    seen = set()
    for event in events:
        if isinstance(event, Token):
            new.append(event)
        if not isinstance(event, Round):
            continue
        trace = event.trace
        assert trace is not None
        tokens = [guess.token for guess in trace.guesses]
        decisions = [guess.decision for guess in trace.guesses]
        assert len(tokens) == event.drafted
        ended = trace.next is None
        rejected = ["rejected"] if event.accepted < event.drafted and not ended else []
        discarded = ["discarded"] * (event.drafted - event.accepted - len(rejected))
        assert decisions == ["accepted"] * event.accepted + rejected + discarded
        kept = [guess.token for guess in trace.guesses if guess.decision == "accepted"]
        assert kept + ([] if trace.next is None else [trace.next.token]) == [token.id for token in new]
        for place, guess in enumerate(trace.guesses):
            before = tuple(text + tokens[:place])
            assert guess.draft_probability == pytest.approx(softmax(draft(before), temperature)[guess.token], rel=1e-4)
            if guess.decision == "discarded":
                assert ended or guess.target_probability is None
            else:
                expected = softmax(target(before), temperature)[guess.token]
                assert guess.target_probability == pytest.approx(expected, rel=1e-4)
        if trace.next is not None:
            expected = softmax(target(tuple(text + kept)), temperature)[trace.next.token]
            assert trace.next.target_probability == pytest.approx(expected, rel=1e-4)
            seen.add(trace.next.kind)
            kinds = {"plain": not tokens, "bonus": bool(tokens) and not rejected, "replacement": bool(rejected)}
            assert kinds[trace.next.kind]
        text += [token.id for token in new]
        new = []
    assert seen == {"plain", "bonus", "replacement"}


def test_a_trace_changes_no_text(toys: Any) -> None:
    target, draft = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    for settings in ({}, {"temperature": 1.0, "seed": 2}, {"temperature": 1.0, "seed": 2, "verifier": "match"}):
        plain, traced = (
            list(toys.generate(toys.Session(target), toys.Session(draft), PROMPT, k=3, traced=on, **settings))
            for on in (False, True)
        )
        assert [e for e in plain if isinstance(e, Token)] == [e for e in traced if isinstance(e, Token)]
        assert all(e.trace is None for e in plain if isinstance(e, Round))


def test_a_trace_has_the_reason_for_k(toys: Any) -> None:
    target, draft = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    events = list(toys.generate(toys.Session(target), toys.Session(draft), PROMPT, k=4, max_new_tokens=12, traced=True))
    rounds = [event for event in events if isinstance(event, Round)]
    whys = [(done.trace.why, done.trace.k) for done in rounds if done.trace is not None]
    left = [12 - sum(done.emitted for done in rounds[:i]) for i in range(len(rounds))]
    expected = [("prompt", 0)] + [("fixed", 4) if n > 4 else ("room", n - 1) for n in left[1:]]
    assert whys == expected
    assert ("room", 1) in whys or ("room", 0) in whys
    events = list(toys.generate(toys.Session(target), toys.Session(draft), PROMPT, k="auto", traced=True))
    whys_of_auto = {done.trace.why for done in events if isinstance(done, Round) and done.trace is not None}
    assert "cost" in whys_of_auto
    assert "fixed" not in whys_of_auto


def test_greedy_guesses_of_sampled_text_count_as_certain(toys: Any) -> None:
    target, draft = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    pair = toys.Session(target), toys.Session(draft)
    events = list(toys.generate(*pair, PROMPT, k=3, traced=True, temperature=1.0, seed=1, proposal="greedy"))
    guesses = [g for e in events if isinstance(e, Round) and e.trace is not None for g in e.trace.guesses]
    assert guesses
    assert {guess.draft_probability for guess in guesses} == {Distribution.point(0).probability(0)}


def test_statistics_count_by_origin_position_and_k(toys: Any) -> None:
    target = toys.random_logits(VOCAB, 1)
    draft = toys.mixed_logits(toys.random_logits(VOCAB, 2), target, 0.6)
    text = toys.generate(toys.Session(target), toys.Session(draft), PROMPT, k=4, max_new_tokens=40, traced=True)
    events = list(text)
    rounds = [event for event in events if isinstance(event, Round)]
    found = text.statistics
    origins = [event.origin for event in events if isinstance(event, Token)]
    assert found.origins == {name: origins.count(name) for name in ("target", "model")}
    assert found.kept_of == {"model": found.accepted}
    guesses = [list(done.trace.guesses) for done in rounds if done.trace is not None]
    for place in range(4):
        here = [round_[place].decision for round_ in guesses if len(round_) > place]
        assert found.accepted_by_position[place] == here.count("accepted")
        assert found.evaluated_by_position[place] == here.count("accepted") + here.count("rejected")
    assert (sum(found.accepted_by_position), sum(found.evaluated_by_position)) == (found.accepted, found.evaluated)
    assert sum(k * count for k, count in found.rounds_by_k.items()) == found.drafted
    assert sum(found.rounds_by_k.values()) == found.rounds
    assert math.isclose(found.draft_seconds + found.target_seconds + found.rest_seconds, found.decode_seconds)
