"""The engine as its users meet it: threads, event loops, cancelling, closing, forks, samples and log-probabilities."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxspec import Answer, Engine, Finished, Grammar, Request, Token
from mxspec.formats.errors import GenerationError
from mxspec.runtime.engine import QueueFullError

PROMPTS = ["hello there", "x", "a prompt that is longer than one chunk of sixteen tokens", "hello you"]
LONG = {"max_new_tokens": 80, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tiny_bundles: dict[str, Path]) -> Path:
    return tiny_bundles["near"]


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with Engine(path) as made:
        yield made


def until(condition: Callable[[], bool]) -> None:
    ended = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ended, "it never came to be"
        time.sleep(0.001)


def test_many_threads_get_the_same_as_one(engine: Engine) -> None:
    """Once two threads mixed their texts without an error."""
    settings: list[dict[str, Any]] = [{"k": 3}, {"k": 0}, {"temperature": 1.0, "seed": 4, "k": 2}]
    jobs = [(prompt, chosen) for prompt in PROMPTS for chosen in settings]
    expected = [engine.generate(prompt, max_new_tokens=20, **chosen).result().token_ids for prompt, chosen in jobs]
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(30):
            index = rng.randrange(len(jobs))
            prompt, chosen = jobs[index]
            got = engine.generate(prompt, max_new_tokens=20, **chosen).result()
            if got.token_ids != expected[index]:
                wrong.append(prompt)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_engines_in_one_process(engine: Engine, path: Path) -> None:
    with Engine(path, slots=1) as other:
        pairs = [(engine.generate(p, max_new_tokens=30), other.generate(p, max_new_tokens=30)) for p in PROMPTS]
        for mine, others in pairs:
            assert mine.result().token_ids == others.result().token_ids


def test_a_cancelled_text_reports_it_and_frees_its_slot(path: Path) -> None:
    with Engine(path, slots=1) as engine:
        first, second = engine.generate("hello", **LONG), engine.generate("x", max_new_tokens=3)
        next(first)
        first.cancel()
        assert second.result().reason == "max_new_tokens"
        *_, last = first
        assert isinstance(last, Finished)
        assert last.reason == "cancelled"
        assert last.statistics.emitted < 80


def test_an_abandoned_text_gives_its_slot_back(path: Path) -> None:
    with Engine(path, slots=1) as engine:
        for event in engine.generate("hello", **LONG):
            assert isinstance(event, Token)
            break
        gc.collect()
        assert engine.generate("x", max_new_tokens=3).result().reason == "max_new_tokens"
        assert not engine._worker._scheduler.busy


def test_closing_ends_running_texts_and_refuses_new_ones(path: Path) -> None:
    engine = Engine(path, slots=1)
    texts = [engine.generate("hello", **LONG), engine.generate("x", **LONG)]
    next(texts[0])
    engine.close()
    engine.close()
    assert [text.result().reason for text in texts] == ["cancelled", "cancelled"]
    with pytest.raises(GenerationError, match="closed"):
        engine.generate("x")


def test_an_unreferenced_engine_ends_its_thread(path: Path) -> None:
    def engines() -> int:
        return sum(thread.name == "mxspec-engine" for thread in threading.enumerate())

    before = engines()
    text = Engine(path, slots=1).generate("hello", max_new_tokens=5)  # the text holds it
    assert len(text.result().token_ids) == 5
    assert engines() == before + 1
    del text
    gc.collect()
    until(lambda: engines() == before)


def test_more_than_the_queue_takes_is_refused_by_name(path: Path) -> None:
    with Engine(path, slots=1, queue=3) as engine:
        running = engine.generate("hello", **LONG)
        next(running)
        with pytest.raises(QueueFullError, match="0 requests are already waiting, expected at most 3"):
            engine.submit_all([Request(prompt="x")] * 4)  # all or none
        waiting = [engine.generate("x", **LONG) for _ in range(3)]
        with pytest.raises(QueueFullError, match="3 requests are already waiting"):
            engine.generate("x", **LONG)
        running.cancel()
        assert [text.result().reason for text in waiting] == ["max_new_tokens"] * 3


def _child(engine: Engine, text: Any, answers: Any) -> None:
    async def read() -> Any:
        return await anext(text)

    for ask in (lambda: engine.generate("x"), lambda: next(text), lambda: asyncio.run(read())):
        try:
            ask()
            answers.put("no error")
        except GenerationError as error:
            answers.put(str(error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error(engine: Engine) -> None:
    text = engine.generate("hello", **LONG)
    next(text)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_child, args=(engine, text, answers))
    child.start()
    assert ["another after the fork" in answers.get() for _ in range(3)] == [True] * 3
    child.join(10)
    assert child.exitcode == 0
    assert len(text.result().token_ids) == 80


def _grammar_child(path: Path, answers: Any) -> None:
    with Engine(path) as engine:
        answers.put(_abc(engine))


def _abc(engine: Engine) -> list[str]:
    """Two texts at once, whose masks are computed on threads of their own."""
    requests = [Request(prompt="x", grammar=Grammar.regex("[ab]{3}c"), k=2)] * 2
    return [handle.result().text for handle in engine.submit_all(requests)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_may_open_its_own_engine(engine: Engine, path: Path) -> None:
    expected = _abc(engine)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_grammar_child, args=(path, answers))
    child.start()
    child.join(10)
    child.kill()
    assert child.exitcode == 0
    assert answers.get() == expected


def test_an_event_loop_reads_many_texts(engine: Engine) -> None:
    async def read(prompt: str) -> list[int]:
        handle = engine.submit(Request(prompt=prompt, max_new_tokens=20, k=3))
        return [event.id async for event in handle if isinstance(event, Token)]

    async def read_all() -> list[list[int]]:
        return await asyncio.gather(*map(read, PROMPTS))

    expected = [engine.generate(prompt, max_new_tokens=20).result().token_ids for prompt in PROMPTS]
    assert asyncio.run(read_all()) == expected


def test_an_error_reaches_an_event_loop(engine: Engine) -> None:
    async def read() -> None:
        request = Request(prompt="x", logit_bias={i: float("-inf") for i in range(259)})
        async for _ in engine.submit(request):
            pass

    with pytest.raises(GenerationError, match="logit_bias: leaves no token"):
        asyncio.run(read())


def test_answers_to_many_requests_keep_their_order(engine: Engine) -> None:
    requests = [Request(prompt=p, max_new_tokens=5 + 20 * (i % 2)) for i, p in enumerate(PROMPTS * 6)]
    answers = list(engine.run(iter(requests)))
    assert len(answers) == len(requests)
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, Answer)
        assert answer.token_ids == engine.submit(request).result().token_ids


def test_samples_share_the_reading_of_their_prompt(path: Path) -> None:
    with Engine(path, slots=4) as engine:
        answers = engine.generate(PROMPTS[2], n=5, temperature=1.0, seed=1, max_new_tokens=10).results()
    prompt = answers[0].statistics.prompt_tokens
    assert [answer.statistics.reused_tokens for answer in answers] == [0, *[prompt - 1] * 4]
    assert len({tuple(answer.token_ids) for answer in answers}) == 5


def test_the_best_of_several_is_the_likeliest(engine: Engine) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_new_tokens": 10, "logprobs": 0}
    all_six = engine.generate("x", n=6, **settings).results()
    best = engine.generate("x", n=2, best_of=6, **settings).results()
    means = sorted((answer.mean_logprob for answer in all_six), reverse=True)
    assert [answer.mean_logprob for answer in best] == means[:2]
    with pytest.raises(GenerationError, match="best_of: events cannot be streamed"):
        next(engine.generate("x", best_of=2, **settings))


@pytest.mark.parametrize("k", [0, 4])
def test_log_probabilities_are_those_of_a_score(engine: Engine, k: int) -> None:
    answer = engine.generate("hello", k=k, max_new_tokens=12, logprobs=3).result()
    assert answer.logprobs is not None
    ids = engine.encode("hello")
    logits = np.concatenate(list(engine.score([*ids, *answer.token_ids]))).astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for i, entry in enumerate(answer.logprobs):
        row = logs[len(ids) - 1 + i]
        assert entry.logprob == pytest.approx(row[answer.token_ids[i]], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()


@pytest.mark.parametrize("k", [0, 1, 4])
def test_shaping_means_the_same_with_and_without_speculation(engine: Engine, k: int) -> None:
    settings: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "logit_bias": {7: 2.0},
        "min_new_tokens": 20,
        "max_new_tokens": 40,
        "logprobs": 1,
        "logprobs_of": "shaped",
    }
    shaped = engine.generate("hello", k=k, **settings).result()
    plain = engine.generate("hello", drafter="none", **settings).result()
    assert shaped.token_ids == plain.token_ids
    assert shaped.logprobs == plain.logprobs
    assert shaped.token_ids != engine.generate("hello", max_new_tokens=40).result().token_ids


@pytest.mark.parametrize("k", [0, 4])
def test_text_before_a_stop_string_is_never_taken_back(engine: Engine, k: int) -> None:
    whole = engine.generate("hello", temperature=1.0, seed=5, k=0, max_new_tokens=60).result().text
    for first in range(0, len(whole) - 3, 7):
        stop = whole[first : first + 3]
        shown, last = "", None
        for event in engine.generate("hello", temperature=1.0, seed=5, k=k, max_new_tokens=60, stop=[stop, "\0never"]):
            shown += event.text if isinstance(event, Token) else event.tail if isinstance(event, Finished) else ""
            last = event
            assert stop not in shown
        assert isinstance(last, Finished)
        if k == 0:  # another K is another sampled text
            assert last.reason == "stop"
            assert shown == whole[: whole.index(stop)]


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_holds_at_every_k(engine: Engine, k: int, temperature: float) -> None:
    sampling: dict[str, Any] = {"temperature": temperature} | ({"seed": 3} if temperature else {})
    schema = Grammar.json_schema(
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    )
    pattern = "(ab|cd){2,4}x"
    answers = [
        engine.generate("json", grammar=schema, k=k, max_new_tokens=60, **sampling).result(),
        engine.generate("re", grammar=Grammar.regex(pattern), k=k, max_new_tokens=60, **sampling).result(),
    ]
    assert all(answer.reason in ("eos", "grammar", "max_new_tokens") for answer in answers)
    if answers[0].reason != "max_new_tokens":
        assert isinstance(json.loads(answers[0].text)["a"], bool)
    assert re.fullmatch(pattern, answers[1].text)
    if temperature == 0:
        plain = engine.generate("re", grammar=Grammar.regex(pattern), drafter="none", max_new_tokens=60)
        assert answers[1].token_ids == plain.result().token_ids


def test_many_requests_with_cancels_and_bad_ones(engine: Engine) -> None:
    rng = random.Random(0)
    expected: dict[tuple[str, int], list[int]] = {}
    handles: list[tuple[tuple[str, int], Any, bool]] = []
    for _ in range(200):
        if rng.random() < 0.1:
            with pytest.raises(GenerationError):
                engine.generate("x", k=99)
            continue
        key = rng.choice(PROMPTS), rng.randrange(1, 30)
        handle = engine.generate(key[0], max_new_tokens=key[1], k=rng.choice([0, 2, "auto"]))
        cancel = rng.random() < 0.2
        if cancel and rng.random() < 0.5:
            handle.cancel()
        handles.append((key, handle, cancel))
    for key, handle, cancel in handles:
        if cancel:
            handle.cancel()
        answer = handle.result()
        if key not in expected:
            expected[key] = engine.generate(key[0], max_new_tokens=key[1], drafter="none").result().token_ids
        if answer.reason == "cancelled":
            assert answer.token_ids == expected[key][: len(answer.token_ids)]
        else:
            assert answer.token_ids == expected[key]
    until(lambda: not engine._worker._scheduler.busy)


def test_no_reader_waits_after_the_engines_thread_failed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's panic is a BaseException, and may come up where no text can be blamed for it."""
    engine = Engine(path, slots=1)
    running, waiting = engine.generate("hello", **LONG), engine.generate("x", **LONG)
    next(running)

    class Panic(BaseException):
        pass

    def fail() -> None:
        raise Panic("a lock was poisoned")

    monkeypatch.setattr(engine._worker._scheduler, "step", fail)
    for text in (running, waiting):
        with pytest.raises(GenerationError, match="engine: failed, make another: Panic: a lock was poisoned"):
            text.result()
    with pytest.raises(GenerationError, match="engine: failed, make another: Panic: a lock was poisoned"):
        engine.generate("x")
    engine.close()


def test_an_engine_that_cannot_start_a_thread_reports_it_each_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Engine(path, slots=1) as engine:
        with monkeypatch.context() as broken:
            broken.setattr(threading.Thread, "start", fail)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="can't start"):
                    engine.generate("x")
        assert engine.generate("x", max_new_tokens=3).result().reason == "max_new_tokens"


def test_an_answer_is_whole_however_much_was_read_before_and_may_be_asked_for_again(engine: Engine) -> None:
    text = engine.generate("hello", max_new_tokens=20, k=2)
    first = next(text)
    assert isinstance(first, Token)
    answer = text.result()
    assert answer.token_ids[0] == first.id
    assert answer.token_ids == engine.generate("hello", max_new_tokens=20, k=2).result().token_ids
    assert text.result() == answer
    assert list(text) == []


def test_an_error_is_raised_again_where_the_answer_is_asked_for_again(engine: Engine) -> None:
    text = engine.generate("x", logit_bias={i: float("-inf") for i in range(259)})
    for _ in range(2):
        with pytest.raises(GenerationError, match="logit_bias: leaves no token"):
            text.result()
    assert list(text) == []


def test_two_threads_may_share_a_handle(engine: Engine) -> None:
    for _ in range(10):
        text = engine.generate("hello", **LONG)
        parts: list[list[Any]] = []

        def read(text: Any = text, parts: list[list[Any]] = parts) -> None:
            parts.append(list(text))

        threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)
        assert sum(isinstance(event, Token) for part in parts for event in part) == 80


def test_a_handle_may_go_on_in_another_event_loop(engine: Engine) -> None:
    text = engine.generate("hello", **LONG)

    async def read(count: int) -> int:
        tokens = 0
        async for event in text:
            tokens += isinstance(event, Token)
            if tokens == count:
                break
        return tokens

    counts = [asyncio.run(asyncio.wait_for(read(count), 10)) for count in (1, 30, 80)]
    assert counts == [1, 30, 49]


def test_an_invalid_drafter_is_refused_at_once(engine: Engine) -> None:
    other = engine.generate("hello", **LONG)
    with pytest.raises(GenerationError, match="drafter: got 5, expected one of model, suffix, "):
        engine.generate("x", drafter=5)
    assert other.result().reason == "max_new_tokens"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"beams": 0}, "beams: got 0"),
        ({"beams": 9}, "beams: got 9, expected at most 8, the slots of the engine"),
        ({"beams": 4, "temperature": 0.7}, r"beams: got 4 at temperature 0\.7"),
        ({"beams": 4, "n": 5}, "n: got 5, expected at most 4, the number of beams"),
        ({"beams": 4, "best_of": 4}, "best_of: given with beams"),
        ({"beams": 4, "lenience": 0.5}, "lenience: given with beams"),
        ({"beams": 4, "trace": True}, "trace: given with beams"),
        ({"beams": 4, "drafter": "suffix"}, "drafter: got suffix with beams, expected model or none"),
        ({"beams": 4, "verifier": "match"}, "verifier: given at temperature 0"),
        ({"beams": 4, "draft_beams": 3, "k": 2}, "draft_beams: got 3"),
        ({"beams": 4, "draft_beams": 8}, "draft_beams: given with k None"),
        ({"beams": 4, "length_penalty": float("nan")}, "length_penalty: got nan"),
        ({"beams": 4, "early_stopping": 1}, "early_stopping: got 1, expected true, false or never"),
        ({"length_penalty": 2.0}, "length_penalty: given without a beam search"),
        ({"early_stopping": "never"}, "early_stopping: given without a beam search"),
        ({"draft_beams": 2, "k": 2}, "draft_beams: given without a beam search"),
    ],
)
def test_settings_that_beams_do_not_support_are_refused_by_name(
    engine: Engine, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(GenerationError, match=f"^{says}"):
        engine.generate("x", **settings)


def test_the_best_beams_come_in_their_order_with_their_scores(engine: Engine) -> None:
    handle = engine.generate("hello", beams=4, n=3, max_new_tokens=12, logprobs=1)
    events = list(handle)
    answers = handle.results()
    assert [answer.sample for answer in answers] == [0, 1, 2]
    scores = [answer.score for answer in answers]
    assert scores == sorted(scores, reverse=True)
    for answer in answers:
        assert answer.score == pytest.approx(answer.mean_logprob, rel=1e-5)  # at a length penalty of 1
        statistics = answer.statistics
        assert (statistics.beams, statistics.verifier, statistics.emitted) == (4, "beams", len(answer.token_ids))
        assert statistics.steps == 12
    assert [event.sample for event in events if isinstance(event, Finished)] == [0, 1, 2]
    best = engine.generate("hello", beams=4, max_new_tokens=12).result()
    assert (best.token_ids, best.score) == (answers[0].token_ids, answers[0].score)
    assert best.text == answers[0].text


def test_many_requests_are_run_through_a_short_queue(path: Path) -> None:
    with Engine(path, slots=1, queue=0) as engine:
        answers = list(engine.run([Request(prompt="x", max_new_tokens=3)] * 5))
    assert [answer.reason for answer in answers if isinstance(answer, Answer)] == ["max_new_tokens"] * 5


def test_the_best_of_cancelled_samples_is_one_that_was_begun(path: Path) -> None:
    with Engine(path, slots=1) as engine:
        text = engine.generate("x", best_of=3, temperature=1.0, **LONG)
        until(lambda: text.statistics.emitted > 0)
        text.cancel()
        assert text.result().token_ids


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"slots": 0}, "slots: got 0"),
        ({"slots": "3"}, "slots: got '3'"),
        ({"queue": -1}, "queue: got -1"),
        ({"threads": 1.5}, "threads: got 1.5"),
        ({"shared_suffixes": -1}, "shared_suffixes: got -1"),
        ({"prefill_ms": "x"}, "prefill_ms: got 'x'"),
        ({"prefill_ms": 0}, "prefill_ms: got 0"),
    ],
)
def test_settings_of_an_engine_that_cannot_be(path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(GenerationError, match=says):
        Engine(path, **settings)
