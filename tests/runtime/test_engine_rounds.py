"""Rounds over toy models: what is fed, emitted, counted and clamped, and that no stale cache entry is ever used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.events import Event, Finished, Round, Token
from mxspec.runtime.scheduling import scheduler, tally, text

VOCAB = 30
PROMPT = [3, 1, 4, 1, 5]


def make_pair(toys: Any, agreement: float, capacity: int = 64) -> tuple[Any, Any]:
    pair: tuple[Any, Any] = toys.pair(VOCAB, 1, agreement, capacity=capacity)
    return pair


def rounds_of(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


@pytest.mark.parametrize("agreement", [0.0, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("k", range(9))
def test_greedy_text_is_the_plain_text_at_every_k(toys: Any, agreement: float, k: int) -> None:
    target, draft = make_pair(toys, agreement)
    plain = toys.tokens(toys.generate(target, None, PROMPT, max_new_tokens=40))
    events = list(toys.generate(target, draft, PROMPT, k=k, max_new_tokens=40))
    assert toys.tokens(events) == plain
    accepted = sum(done.accepted for done in rounds_of(events))
    assert (accepted > 5) == (k > 0 and agreement > 0)
    assert accepted + len(rounds_of(events)) == 40


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_no_sequence_of_tokens_comes_twice_at_any_k(toys: Any, k: int) -> None:
    """Of models that see the last token alone, and would go round in circles."""
    by_last = [toys.random_logits(VOCAB, seed) for seed in (1, 2)]
    models = [lambda text, logits=logits: logits(text[-1:]) for logits in by_last]
    target, draft = (toys.Session(model) for model in (models[0], toys.mixed_logits(models[1], models[0], 0.7)))
    ids = toys.tokens(toys.generate(target, draft, PROMPT, k=k, max_new_tokens=40, no_repeat_ngram_size=3))
    plain = toys.tokens(toys.generate(target, None, PROMPT, max_new_tokens=40, no_repeat_ngram_size=3))
    free = toys.tokens(toys.generate(target, None, PROMPT, max_new_tokens=40))
    triples = [tuple(text[i : i + 3]) for text in ([*PROMPT, *ids], [*PROMPT, *free]) for i in range(len(text) - 2)]
    assert ids == plain
    assert len(set(triples[: len(triples) // 2])) == len(triples) // 2 > len(set(triples[len(triples) // 2 :]))


def test_a_round_scores_all_its_tokens_in_one_call(toys: Any) -> None:
    target, draft = make_pair(toys, 0.6)
    events = list(toys.generate(target, draft, PROMPT, k=4, max_new_tokens=30))
    rounds = rounds_of(events)
    assert len(target.calls) == len(rounds)
    length = len(PROMPT)
    assert target.calls[0] == [(0, 0, length, 1)]
    for ((_, past, count, rows),), done in zip(target.calls[1:], rounds[1:], strict=True):
        assert (past, count, rows) == (length, done.drafted + 1, done.drafted + 1)
        length += done.emitted


def test_the_draft_catches_up_with_two_tokens_after_a_round_in_which_all_were_kept(toys: Any) -> None:
    target, draft = make_pair(toys, 0.75)
    k = 3
    rounds = rounds_of(list(toys.generate(target, draft, PROMPT, k=k, max_new_tokens=50)))
    assert draft.calls[0] == [(0, 0, len(PROMPT), 1)]
    calls = iter([call for (call,) in draft.calls[1:]])
    seen = set()
    for before, done in zip([None, *rounds[1:]], rounds[1:], strict=False):
        first, *others = [next(calls) for _ in range(done.drafted)] or [(0, 0, 0, 0)]
        all_kept = before is not None and before.accepted == before.drafted
        if done.drafted:
            assert first[2:] == (2 if all_kept else 1, 1)
            assert all(call[2:] == (1, 1) for call in others)
        seen.add((all_kept, done.accepted < done.drafted))
    assert next(calls, None) is None
    assert (True, True) in seen, "no all-accept was followed by a reject: the test shows nothing"


@pytest.mark.parametrize("agreement", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("limit", range(1, 12))
def test_k_is_clamped_at_the_last_tokens_to_emit(toys: Any, agreement: float, limit: int) -> None:
    target, draft = make_pair(toys, agreement)
    events = list(toys.generate(target, draft, PROMPT, k=4, max_new_tokens=limit))
    assert len(toys.tokens(events)) == limit
    assert events[-1].reason == "max_new_tokens"  # type: ignore[union-attr]
    emitted = 0
    for done in rounds_of(events):
        assert done.drafted <= max(0, limit - emitted - 1)
        emitted += done.emitted


@pytest.mark.parametrize("agreement", [0.0, 0.8, 1.0])
@pytest.mark.parametrize(("capacity", "draft_capacity"), [(16, 16), (17, 64), (64, 12), (16, 5), (16, 3)])
def test_k_is_clamped_at_the_end_of_both_contexts(
    toys: Any, agreement: float, capacity: int, draft_capacity: int
) -> None:
    target, draft = make_pair(toys, agreement, capacity)
    draft.capacity = draft_capacity
    plain = list(toys.generate(target, None, PROMPT, max_new_tokens=100))
    events = list(toys.generate(target, draft, PROMPT, k=4, max_new_tokens=100))
    assert toys.tokens(events) == toys.tokens(plain)
    assert len(toys.tokens(events)) == capacity - len(PROMPT) + 1  # the last one needs no place in the cache
    assert events[-1].reason == plain[-1].reason == "context_end"  # type: ignore[union-attr]


def test_a_prompt_that_fills_the_context_still_gives_a_token(toys: Any) -> None:
    target, draft = make_pair(toys, 0.5, capacity=5)
    events = list(toys.generate(target, draft, PROMPT, k=4))
    assert len(toys.tokens(events)) == 1
    assert events[-1].reason == "context_end"  # type: ignore[union-attr]


@pytest.mark.parametrize("agreement", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_any_of_several_ends_of_text_ends_it_inside_a_round(toys: Any, agreement: float, k: int) -> None:
    target, draft = make_pair(toys, agreement)
    plain = toys.tokens(toys.generate(target, None, PROMPT, max_new_tokens=40))
    for end in (3, 4, 5, 11):
        eos = plain[end]
        first = plain.index(eos)
        events = list(toys.generate(target, draft, PROMPT, k=k, max_new_tokens=40, eos=[VOCAB + 1, eos]))
        assert toys.tokens(events) == plain[: first + 1]
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "eos"
        total = events[-1].statistics
        # Nothing after the end is counted; only the round that it cut emitted less than its accepted ones and one.
        assert total.emitted == first + 1
        assert total.rounds + total.accepted - total.emitted in (0, 1)
        for done in rounds_of(events):
            assert done.accepted <= done.evaluated <= done.drafted
            assert done.emitted in (done.accepted, done.accepted + 1)


def test_the_sums_are_those_of_the_rounds(toys: Any) -> None:
    target, draft = make_pair(toys, 0.8)
    text = toys.generate(target, draft, PROMPT, k=3, max_new_tokens=40)
    events = list(text)
    total, rounds = text.statistics, rounds_of(events)
    assert events[-1] == Finished("max_new_tokens", total, events[-1].tail)  # type: ignore[union-attr]
    for name in ("drafted", "evaluated", "accepted", "emitted"):
        assert getattr(total, name) == sum(getattr(done, name) for done in rounds)
    assert total.rounds == len(rounds)
    assert total.emitted == total.accepted + total.rounds == 40
    assert total.bonus == sum(0 < done.drafted == done.accepted for done in rounds) > 0
    assert total.acceptance == total.accepted / total.evaluated
    assert total.tokens_per_round == 39 / (len(rounds) - 1)
    assert 0.5 < total.acceptance < 1


def test_tokens_are_marked_as_drafted_or_the_targets_own(toys: Any) -> None:
    target, draft = make_pair(toys, 0.8)
    marks: list[bool] = []
    for event in toys.generate(target, draft, PROMPT, k=3, max_new_tokens=40):
        if isinstance(event, Token):
            marks.append(event.drafted)
        elif isinstance(event, Round):
            assert marks == [True] * event.accepted + [False]
            marks = []


def test_sampled_text_ignores_a_look_ahead_that_is_always_discarded(toys: Any) -> None:
    """The draft proposes what the target can never say: at every K the text is the plain one, number for number."""
    low, high = np.full(VOCAB, -np.inf, np.float32), np.full(VOCAB, -np.inf, np.float32)
    low[: VOCAB // 2], high[VOCAB // 2 :] = 0, 0
    rows = toys.random_logits(VOCAB, 1)
    target = toys.Session(lambda text: rows(text) + low)
    draft = toys.Session(lambda text: rows(text) + high)
    settings = {"max_new_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 5}
    plain = toys.tokens(toys.generate(target, None, PROMPT, **settings))
    assert len(set(plain)) > 8
    for k in range(1, 9):
        events = list(toys.generate(target, draft, PROMPT, k=k, **settings))
        assert sum(done.drafted for done in rounds_of(events)) > 30
        assert toys.tokens(events) == plain
    assert toys.tokens(toys.generate(target, None, PROMPT, **settings | {"seed": 6})) != plain


def test_sampled_text_is_the_same_for_the_same_seed(toys: Any) -> None:
    target, draft = make_pair(toys, 0.5)
    settings = {"k": 4, "max_new_tokens": 40, "temperature": 1.0, "seed": 9}
    first = toys.tokens(toys.generate(target, draft, PROMPT, **settings))
    assert toys.tokens(toys.generate(target, draft, PROMPT, **settings)) == first


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", ["target", "draft"])
def test_nan_logits_end_in_a_clear_error(toys: Any, temperature: float, broken: str) -> None:
    target, draft = make_pair(toys, 0.5)
    model = {"target": target, "draft": draft}[broken]
    good = model._logits
    model._logits = lambda text: good(text) if len(text) < 9 else np.where(np.arange(VOCAB) == 7, np.nan, good(text))
    with pytest.raises(GenerationError, match="NaN or infinity"):
        list(toys.generate(target, draft, PROMPT, k=3, max_new_tokens=20, temperature=temperature))


def test_the_readers_own_time_is_in_no_statistic(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    for module in (scheduler, tally, text):
        monkeypatch.setattr(module, "time", clock)
    target, draft = make_pair(toys, 0.5)
    for model, name, seconds in ((target, "run", 2.0), (draft, "run_head", 0.5)):
        run = getattr(model, name)

        def slow(parts: Any, run: Any = run, seconds: float = seconds) -> Any:
            clock.now += seconds
            return run(parts)

        monkeypatch.setattr(model, name, slow)
    written = toys.generate(target, draft, PROMPT, k=2, max_new_tokens=10)
    for _ in written:
        clock.now += 1000
    total = written.statistics
    assert total.prefill_seconds == 2.5  # both read the prompt
    assert total.target_seconds == 2 * (total.rounds - 1)
    assert total.draft_seconds == 0.5 * total.drafted
    assert total.decode_seconds == total.target_seconds + total.draft_seconds
    assert total.decode_tokens_per_second == 9 / total.decode_seconds


def test_statistics_can_be_asked_for_at_any_time(toys: Any) -> None:
    target, draft = make_pair(toys, 0.5)
    text = toys.generate(target, draft, PROMPT, k=2, max_new_tokens=10)
    assert (text.statistics.rounds, text.statistics.emitted, text.statistics.prefill_seconds) == (0, 0, 0)
    assert text.statistics.acceptance is text.statistics.tokens_per_round is None
    next(text)
    assert text.statistics.rounds == 1
