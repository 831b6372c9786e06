"""Beam search with a draft is that of the target alone, bit for bit; in company and in any number of slots, too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Finished, Round, Token
from mxspec.runtime.grammars.grammar import Grammar

VOCAB = 30
PROMPT = [3, 1, 4, 1, 5]


def make_pair(toys: Any, slots: int, agreement: float = 0.7, chunk: int = 64, source_capacity: int = 0) -> Any:
    return toys.pair(VOCAB, slots, agreement, chunk=chunk, source_capacity=source_capacity)


def random_settings(rng: random.Random, most: int) -> dict[str, Any]:
    count = rng.randrange(2, most + 1)
    settings: dict[str, Any] = {
        "count": count,
        "best": rng.randrange(1, count + 1),
        "length_penalty": rng.choice([1.0, 0.0, 2.0, -1.0]),
        "early_stopping": rng.choice([False, True, "never"]),
        "max_new_tokens": rng.randrange(1, 25),
        "eos": [rng.randrange(VOCAB)],
        "logprobs": 2,
        "logprobs_of": rng.choice(["raw", "shaped"]),
    }
    if rng.random() < 0.5:
        settings |= {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 1}
    if rng.random() < 0.3:
        settings["stop"] = [chr(rng.randrange(VOCAB)) for _ in range(2)]
    return settings


def written(events: list[Any]) -> list[Any]:
    """All that the reader sees but for who guessed what, and when."""
    tokens = [(event.sample, event.id, event.text, event.logprob) for event in events if isinstance(event, Token)]
    ends = [(event.sample, event.reason, event.tail, event.score) for event in events if isinstance(event, Finished)]
    return [*tokens, *ends]


@pytest.mark.parametrize("agreement", [0.0, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_drafted_search_equals_that_of_the_target_alone(toys: Any, agreement: float, seed: int) -> None:
    rng = random.Random(seed)
    settings = random_settings(rng, 4)
    target, _ = make_pair(toys, settings["count"])
    plain = written(toys.search(target, None, PROMPT, **settings))
    kept = 0
    for k in (1, 2, 5):
        for width in (settings["count"], 2 * settings["count"]):
            for slots in (settings["count"], 7, 24):
                target, draft = make_pair(toys, slots, agreement)
                events = toys.search(target, draft, PROMPT, k=k, draft_beams=width, **settings)
                assert written(events) == plain
                (statistics, *_) = [event.statistics for event in events if isinstance(event, Finished)]
                assert len(target.calls) == statistics.rounds
                kept += statistics.accepted
                if agreement == 1 and slots == 24 and width == settings["count"]:
                    assert statistics.accepted == statistics.evaluated
    assert kept > 0 or agreement < 1 or statistics.steps < 3


@pytest.mark.parametrize("source_capacity", [0, 16])
@pytest.mark.parametrize("seed", range(8))
def test_a_search_next_to_other_texts_equals_the_search_alone(toys: Any, seed: int, source_capacity: int) -> None:
    """Searches and other texts come at random, and some are cancelled; what is borrowed is lost again."""
    rng = random.Random(seed)
    slots, chunk = rng.choice([3, 4, 6]), rng.choice([3, 8, 64])
    target, draft = make_pair(toys, slots, chunk=chunk, source_capacity=source_capacity)
    sources = [tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 17))) for _ in range(3)]
    scheduler = toys.scheduler(target, draft, prefill_ms=rng.choice([1e-6, 0.02, 50]))
    running: list[tuple[Any, Any, Any]] = []
    for _ in range(24):
        prompt = [*PROMPT[: rng.randrange(6)], *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20)))]
        searches = rng.random() < 0.6
        if searches:
            settings = random_settings(rng, min(slots, 4))
        else:
            settings = {"max_new_tokens": rng.randrange(1, 25), "eos": [rng.randrange(VOCAB)], "logprobs": 2}
        settings |= {"source": rng.choice(sources)} if source_capacity else {}
        k = rng.choice([0, 1, 3] if searches else [0, 3, "auto"])
        running.append((prompt, settings, scheduler.write(prompt, k=k, **settings)))
        for _ in range(rng.randrange(4)):
            scheduler.step()
            if rng.random() < 0.1:
                rng.choice(running)[2].text.cancelled = True
    scheduler.run()
    compared = 0
    for prompt, settings, outbox in running:
        ends = [event for event in outbox if isinstance(event, Finished)]
        assert len(ends) == outbox.text.answers
        if any(end.reason == "cancelled" for end in ends):
            continue
        alone, _ = make_pair(toys, 6, source_capacity=source_capacity)
        if "count" in settings:
            assert written(outbox) == written(toys.search(alone, None, prompt, **settings))
            compared += 1
        else:
            assert written(outbox) == written(list(toys.generate(alone, None, prompt, **settings)))
    assert compared > 3
    assert scheduler.free == slots


def test_a_search_waits_for_as_many_slots_as_it_needs(toys: Any) -> None:
    scheduler = toys.scheduler(make_pair(toys, 4)[0])
    boxes = [scheduler.write(PROMPT, max_new_tokens=5, **beams) for beams in ({}, {"count": 4}, {})]
    while scheduler.busy:
        scheduler.step()
        if not boxes[0] or not isinstance(boxes[0][-1], Finished):
            assert scheduler.running == 1
    assert [isinstance(box[-1], Finished) for box in boxes] == [True] * 3


def test_the_prompt_is_read_once_and_copied_once(toys: Any) -> None:
    target, draft = make_pair(toys, 8)
    copies: list[tuple[int, int, int, int]] = []
    copy = target.copy_prefix
    target.copy_prefix = lambda *entries: (copies.append(entries), copy(*entries))
    toys.search(target, draft, PROMPT * 4, count=4, k=2, max_new_tokens=20)
    length = 4 * len(PROMPT)
    assert [call for call in target.calls if call[0][2] >= length] == [[(0, 0, length, 1)]]
    whole = [entries for entries in copies if entries[3] == 0]
    assert len(whole) == len({destination for _, destination, _, _ in whole}) <= 7
    assert all(first >= length for _, _, _, first in copies if first > 0)


def test_the_tokens_that_a_search_has_read_are_reused(toys: Any) -> None:
    scheduler = toys.scheduler(*make_pair(toys, 4))
    box = scheduler.write(PROMPT, count=3, max_new_tokens=8, k=1)
    scheduler.run()
    again = scheduler.write([*PROMPT, *toys.tokens(box), 7], max_new_tokens=3, k=2)
    scheduler.run()
    assert again.text.tally.statistics().reused_tokens >= len(PROMPT) + 4


def test_a_cancelled_search_gives_the_best_so_far(toys: Any) -> None:
    scheduler = toys.scheduler(make_pair(toys, 4)[0])
    box = scheduler.write(PROMPT, count=4, best=2, max_new_tokens=20)
    for _ in range(5):
        scheduler.step()
    box.text.cancelled = True
    scheduler.step()
    assert [event.reason for event in box if isinstance(event, Finished)] == ["cancelled"] * 2
    assert sum(isinstance(event, Token) for event in box) == 10
    assert sum(isinstance(event, Round) for event in box) == 2


def test_an_error_of_the_draft_ends_only_the_search(toys: Any) -> None:
    target, draft = make_pair(toys, 4)
    draft.run = None
    with pytest.raises(TypeError):
        toys.search(target, draft, PROMPT, count=2, k=2)


def test_the_error_says_that_the_settings_allow_fewer_texts(toys: Any) -> None:
    target, _ = make_pair(toys, 4)
    only = {"logit_bias": {token: -float("inf") for token in range(VOCAB) if token not in (4, 5)}}
    with pytest.raises(GenerationError, match=r"^n: got 3, but only 2 texts are possible"):
        toys.search(target, None, PROMPT, count=4, best=3, max_new_tokens=1, **only)


PROMPTS = ("def mean(values):\n", "import os\n\nclass Reader:\n    def", "for i in range(")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_demo_pair_finds_the_targets_texts(demo_bundles: dict[str, Path], prompt: str) -> None:
    settings: list[dict[str, Any]] = [
        {"beams": 2, "n": 2},
        {"beams": 4, "n": 3, "length_penalty": 2.0, "early_stopping": True, "stop": "\n\n"},
        {"beams": 3, "n": 1, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2},
    ]
    kept = 0
    with Engine(demo_bundles["real"]) as engine:
        for chosen in settings:
            plain = engine.generate(prompt, k=0, max_new_tokens=24, logprobs=1, **chosen).results()
            for k, width in ((1, None), (3, 2 * chosen["beams"])):
                answers = engine.generate(
                    prompt, k=k, draft_beams=width, max_new_tokens=24, logprobs=1, **chosen
                ).results()
                for found, expected in zip(answers, plain, strict=True):
                    assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
                    assert (found.score, found.reason) == (expected.score, expected.reason)
                    assert found.logprobs == expected.logprobs
                kept += answers[0].statistics.accepted
    assert kept > 10


def test_a_grammar_holds_for_every_beam(tiny_bundles: dict[str, Path]) -> None:
    """Digits, then one of two words: texts that end where the grammar is complete."""
    grammar = Grammar.regex("[0-9]{2,4} (cat|dog)")
    with Engine(tiny_bundles["near"]) as engine:
        plain = engine.generate("hello", beams=4, n=4, grammar=grammar, k=0, max_new_tokens=20).results()
        drafted = engine.generate("hello", beams=4, n=4, grammar=grammar, k=3, max_new_tokens=20).results()
        wide = engine.generate("hello", beams=8, n=8, grammar=grammar, k=0, max_new_tokens=20).results()
    for answers in (plain, drafted, wide):
        assert all(answer.reason == "grammar" and answer.text[-4:] in (" cat", " dog") for answer in answers)
    assert [(answer.text, answer.score) for answer in drafted] == [(answer.text, answer.score) for answer in plain]
    assert len({answer.text for answer in wide}) == 8


def test_a_stop_string_ends_a_beam_as_an_end_does(tiny_bundles: dict[str, Path]) -> None:
    with Engine(tiny_bundles["near"]) as engine:
        free = engine.generate("hello", beams=3, n=3, max_new_tokens=16).results()
        stop = free[0].text[6:8]
        answers = engine.generate("hello", beams=3, n=3, max_new_tokens=16, stop=stop, early_stopping=True).results()
    stopped = [answer for answer in answers if answer.reason == "stop"]
    assert stopped
    assert all(stop not in answer.text for answer in answers)
    for answer in stopped:
        with_stop = engine.tokenizer.decode(answer.token_ids)
        assert with_stop.startswith(answer.text + stop)
