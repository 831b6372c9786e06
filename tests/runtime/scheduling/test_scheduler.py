"""Many toy texts at once: each writes what it writes alone, whoever comes and goes beside it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.events import Event, Finished, Round, Token
from mxspec.runtime.models.slots import Slots, common_prefix
from mxspec.runtime.sampling.logprobs import Logprob

VOCAB = 30
PROMPT = [3, 1, 4, 1, 5]


def make_pair(toys: Any, slots: int, chunk: int = 8, agreement: float = 0.7) -> Any:
    return toys.pair(VOCAB, slots, agreement, chunk=chunk)


def tokens_of(events: Sequence[Any]) -> list[tuple[int, Logprob | None]]:
    return [(event.id, event.logprob) for event in events if isinstance(event, Token)]


def reason_of(events: Sequence[Event]) -> str:
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Finished) for event in events[:-1])
    return events[-1].reason


def random_settings(rng: random.Random) -> dict[str, Any]:
    """Greedy or sampled, plain or shaped, with a K of its own or a chosen one."""
    greedy = rng.random() < 0.4
    settings: dict[str, Any] = {
        "max_new_tokens": rng.randrange(1, 25),
        "k": rng.choice([0, 1, 2, 4, 8, "auto"] if greedy else [0, 1, 2, 4, 8]),
        "temperature": 0.0 if greedy else rng.choice([0.7, 1.0]),
        "seed": rng.randrange(100),
        "eos": [rng.randrange(VOCAB)],
        "logprobs": 2,
    }
    if not greedy and rng.random() < 0.5:
        settings |= {"top_k": 9, "top_p": 0.9, "min_p": 0.01}
    if rng.random() < 0.4:
        settings |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "logit_bias": {3: 1.0}, "min_new_tokens": 1}
    if rng.random() < 0.3:
        settings["no_repeat_ngram_size"] = 2
    if rng.random() < 0.3:
        settings["cache_key"] = rng.choice("ab")
    return settings


@pytest.mark.parametrize("seed", range(12))
def test_every_text_equals_the_text_written_alone(toys: Any, seed: int) -> None:
    """Random arrivals, cancels, lengths and settings; prompts that begin alike."""
    rng = random.Random(seed)
    target, draft = make_pair(toys, slots=rng.choice([1, 2, 3, 5]), chunk=rng.choice([3, 8, 64]))
    scheduler = toys.scheduler(target, draft, prefill_ms=rng.choice([1e-6, 0.02, 50]))
    running: list[tuple[Any, Any, Any, bool]] = []
    for _ in range(40):
        start = PROMPT[: rng.randrange(6)]
        prompt = [*start, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20)))]
        settings = random_settings(rng)
        running.append((prompt, settings, scheduler.write(prompt, **settings), rng.random() < 0.2))
        for _ in range(rng.randrange(4)):
            scheduler.step()
            for _, _, other, victim in running:
                other.text.cancelled |= victim and rng.random() < 0.1
    scheduler.run()
    ended = set()
    for prompt, settings, outbox, _ in running:
        alone = list(toys.generate(*make_pair(toys, slots=1, chunk=64), prompt, **settings))
        reason = reason_of(outbox)
        ended.add(reason)
        if reason == "cancelled":
            assert tokens_of(outbox) == tokens_of(alone)[: len(tokens_of(outbox))]
        else:
            assert tokens_of(outbox) == tokens_of(alone)
            assert reason == reason_of(alone)
    assert {"eos", "max_new_tokens"} <= ended


def test_a_step_is_one_call_of_the_target_and_one_of_the_draft_a_position(toys: Any) -> None:
    target, draft = make_pair(toys, slots=4, chunk=64)
    scheduler = toys.scheduler(target, draft)
    for first, k in ((1, 3), (2, 1), (3, 0), (4, 3)):
        scheduler.write([first, 2, 3], k=k, max_new_tokens=30)
    scheduler.step()  # reads the prompts
    assert len(target.calls) == len(draft.calls) == 1
    scheduler.step()
    assert [rows for _, _, _, rows in target.calls[1]] == [4, 2, 1, 4]
    assert [len(call) for call in draft.calls[1:]] == [3, 2, 2]


def test_first_come_first_served_and_free_slots_are_used_at_once(toys: Any) -> None:
    target, _ = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target)
    boxes = [scheduler.write([i, 7], max_new_tokens=2 + i % 3) for i in range(6)]
    begun: list[int] = []
    while scheduler.busy:
        scheduler.step()
        begun += [i for i, box in enumerate(boxes) if box and i not in begun]
        assert len(target.calls[-1]) == 2 or not scheduler.waiting
    assert begun == list(range(6))


def test_a_long_prompt_is_read_in_pieces_that_others_can_wait_for(toys: Any) -> None:
    """A token is said to cost a millisecond and the budget is five: no step reads more than five tokens of a prompt."""
    target, _ = make_pair(toys, slots=3, chunk=64)
    scheduler = toys.scheduler(target, prefill_ms=5)
    box = scheduler.write([1], max_new_tokens=40)
    scheduler.step()

    class Costs:
        sizes = 2

        def seconds(self, tokens: int) -> float:
            return tokens / 1e3

        def affordable(self, tokens: int, seconds: float, most: int) -> int:
            return min(round(seconds * 1e3), most)

        def count(self, tokens: int) -> int:
            return 9

        def add(self, tokens: int, seconds: float) -> None:
            pass

    scheduler.load.score = Costs()
    late = scheduler.write(range(23), max_new_tokens=3)
    before = len(box)
    while not late:
        scheduler.step()
        assert sum(count for _, _, count, _ in target.calls[-1]) <= 1 + 5
        assert len(box) > before  # the first text gets a token in every step
        before = len(box)
    assert [call[1][2] for call in target.calls[1:] if len(call) == 2][:5] == [5, 5, 5, 5, 3]


def test_a_prompt_is_read_in_whole_chunks_if_no_text_waits(toys: Any) -> None:
    target, draft = make_pair(toys, slots=2, chunk=8)
    scheduler = toys.scheduler(target, draft)
    scheduler.write(range(19), k=2, max_new_tokens=1)
    scheduler.run()
    assert [(count, rows) for ((_, _, count, rows),) in target.calls] == [(8, 1), (8, 1), (3, 1)]


@pytest.mark.parametrize("k", [0, 3])
def test_a_second_turn_reads_only_the_new_tokens(toys: Any, k: int) -> None:
    target, draft = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target, draft)
    first = scheduler.write(PROMPT, k=k, max_new_tokens=10)
    scheduler.run()
    prompt = [*PROMPT, *toys.tokens(first), 7, 8]
    second = scheduler.write(prompt, k=k, max_new_tokens=10)
    read = len(target.calls)
    scheduler.run()
    assert target.calls[read][0][2] == 3  # the last token of the answer, which was never read, and two new ones
    assert second.text.tally.statistics().reused_tokens == len(prompt) - 3
    assert tokens_of(second) == tokens_of(
        list(toys.generate(*make_pair(toys, slots=1), prompt, k=k, max_new_tokens=10))
    )


def test_the_same_prompt_again_reads_its_last_token_and_leaves_the_longer_text_whole(toys: Any) -> None:
    target, _ = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target)
    first = scheduler.write(PROMPT, max_new_tokens=8)
    scheduler.run()
    answer = toys.tokens(first)
    again = scheduler.write(PROMPT, max_new_tokens=8)
    calls = len(target.calls)
    scheduler.run()
    assert target.calls[calls] == [(1, len(PROMPT) - 1, 1, 1)]  # copied to the slot that was free
    assert tokens_of(again) == tokens_of(first)
    longer = scheduler.write([*PROMPT, *answer, 9], max_new_tokens=2)
    scheduler.run()
    assert longer.text.tally.statistics().reused_tokens == len(PROMPT) + len(answer) - 1


def test_nothing_is_shared_across_cache_keys(toys: Any) -> None:
    target, _ = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target)
    for key, reused in (("a", 0), ("b", 0), ("a", len(PROMPT) - 1), ("", 0)):
        box = scheduler.write(PROMPT, max_new_tokens=2, cache_key=key)
        scheduler.run()
        assert box.text.tally.statistics().reused_tokens == reused


def test_samples_of_a_prompt_read_it_once(toys: Any) -> None:
    target, draft = make_pair(toys, slots=4)
    scheduler = toys.scheduler(target, draft)
    settings: dict[str, Any] = {"k": 2, "max_new_tokens": 6, "temperature": 1.0, "seed": 3}
    prompt = list(range(20))
    boxes = scheduler.write_samples(6, prompt, **settings)
    scheduler.run()
    read = sum(count for call in target.calls for _, past, count, _ in call if past + count <= len(prompt))
    assert read == len(prompt) + 5  # once, and the last token for each of the others
    texts = [tuple(tokens_of(box)) for box in boxes]
    assert len(set(texts)) == 6
    for i in (0, 4):
        alone = toys.generate(*make_pair(toys, slots=1), prompt, sample=i, **settings)
        assert tuple(tokens_of(list(alone))) == texts[i]


def test_a_cancelled_text_frees_its_slot_within_a_step(toys: Any) -> None:
    target, _ = make_pair(toys, slots=1)
    scheduler = toys.scheduler(target)
    box, next_box = scheduler.write(PROMPT, max_new_tokens=30), scheduler.write([9, 9], max_new_tokens=2)
    scheduler.step()
    box.text.cancelled = True
    scheduler.step()
    assert reason_of(box) == "cancelled"
    assert tokens_of(next_box)


def test_an_error_of_one_text_is_no_other_texts_error(toys: Any) -> None:
    good = toys.random_logits(VOCAB, 1)
    bad = np.full(VOCAB, np.nan, np.float32)
    target = toys.Session(lambda text: bad if text[1:2] == (29,) else good(text), slots=3)
    scheduler = toys.scheduler(target)
    boxes = [scheduler.write(prompt, max_new_tokens=5) for prompt in ([1, 2], [1, 29], [1, 3])]
    scheduler.run()
    assert isinstance(boxes[1][-1], GenerationError)
    assert "NaN" in str(boxes[1][-1])
    assert reason_of(boxes[0]) == reason_of(boxes[2]) == "max_new_tokens"


def test_the_drafts_of_a_failed_text_are_never_reused(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails on its own token in the place of a drafted one, which is still in the cache."""
    logits = toys.random_logits(VOCAB, 1)
    target, draft = toys.Session(logits, slots=1), toys.Session(toys.random_logits(VOCAB, 2), slots=1)
    scheduler = toys.scheduler(target, draft)
    box = scheduler.write(PROMPT, k=4, max_new_tokens=30)
    keep, kept = box.text.shaper.keep, []

    def fail_at_the_fifth(tokens: Sequence[int]) -> None:
        kept.extend(tokens)
        if len(kept) == 5:
            raise GenerationError("grammar", "grew too large")
        keep(tokens)

    monkeypatch.setattr(box.text.shaper, "keep", fail_at_the_fifth)
    scheduler.run()
    assert isinstance(box[-1], GenerationError)
    prompt = [*PROMPT, *kept, 9]
    again = scheduler.write(prompt, k=0, max_new_tokens=1)
    scheduler.run()
    assert tokens_of(again)[0][0] == logits(tuple(prompt)).argmax()


@pytest.mark.parametrize("broken", ["target", "draft"])
def test_an_error_of_either_model_ends_one_text(toys: Any, broken: str) -> None:
    good, bad = toys.random_logits(VOCAB, 1), np.full(VOCAB, np.nan, np.float32)

    def breaks(text: tuple[int, ...]) -> Any:
        return bad if len(text) == 12 and text[0] == PROMPT[0] else good(text)

    target = toys.Session(breaks if broken == "target" else good, slots=2)
    draft = toys.Session(breaks if broken == "draft" else good, slots=2)
    scheduler = toys.scheduler(target, draft)
    box, other = (scheduler.write(prompt, k=4, max_new_tokens=30) for prompt in (PROMPT, [7, 7]))
    scheduler.run()
    assert isinstance(box[-1], GenerationError)
    assert reason_of(other) == "max_new_tokens"


@pytest.mark.parametrize("call", ["read", "propose"])
def test_a_drafter_that_raises_ends_its_own_texts(toys: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    target, draft = make_pair(toys, slots=3)

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    scheduler = toys.scheduler(target, draft)
    boxes = [scheduler.write(PROMPT, k=k, max_new_tokens=8) for k in (3, 0)]
    monkeypatch.setattr(draft.drafter, call, fail)
    scheduler.run()
    assert str(boxes[0][-1]) == f"drafter model: {call} raised RuntimeError: out of memory"
    assert reason_of(boxes[1]) == "max_new_tokens"
    monkeypatch.undo()
    again = scheduler.write(PROMPT, k=3, max_new_tokens=8)
    scheduler.run()
    alone = toys.generate(*make_pair(toys, slots=1), PROMPT, k=3, max_new_tokens=8)
    assert tokens_of(again) == tokens_of(list(alone))


def test_the_cache_entries_of_a_failed_call_are_never_used(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target)
    box = scheduler.write(PROMPT, max_new_tokens=30)
    scheduler.step()
    run_well = target.run

    def fail(parts: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(target, "run", fail)
    scheduler.step()
    assert isinstance(box[-1], RuntimeError)
    monkeypatch.setattr(target, "run", run_well)
    again = scheduler.write(PROMPT, max_new_tokens=3)
    scheduler.run()
    assert again.text.tally.statistics().reused_tokens == 0


def test_ending_all_ends_those_that_wait_too(toys: Any) -> None:
    target, _ = make_pair(toys, slots=1)
    scheduler = toys.scheduler(target)
    boxes = [*scheduler.write_samples(3, PROMPT), scheduler.write(PROMPT)]
    scheduler.step()
    scheduler.end_all()
    assert not scheduler.busy
    assert [reason_of(box) for box in boxes] == ["cancelled"] * 4


@pytest.mark.parametrize("broken", ["push", "finish"])
def test_tokens_that_cannot_be_decoded_end_only_their_own_text(
    toys: Any, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    target, _ = make_pair(toys, slots=3, chunk=64)
    scheduler = toys.scheduler(target)
    box, cancelled, other = (scheduler.write(PROMPT, max_new_tokens=6) for _ in range(3))

    def fail(*tokens: int) -> str:
        raise BundleError("tokenizer: cannot decode")

    for out in (box, cancelled):
        monkeypatch.setattr(out.text._stream, broken, fail)
    scheduler.step()
    cancelled.text.cancelled = True
    scheduler.run()
    for out in (box, cancelled):
        assert isinstance(out[-1], BundleError)
        assert not any(isinstance(event, Finished | BaseException) for event in out[:-1])
    assert reason_of(other) == "max_new_tokens"


def test_cancelled_samples_end_together_and_take_no_slot(toys: Any) -> None:
    target, _ = make_pair(toys, slots=1)
    scheduler = toys.scheduler(target)
    boxes, other = scheduler.write_samples(4, PROMPT), scheduler.write([9, 9], max_new_tokens=2)
    for box in boxes:
        box.text.cancelled = True
    scheduler.step()
    assert [reason_of(box) for box in boxes] == ["cancelled"] * 4
    assert tokens_of(other)


def test_samples_of_the_earlier_prompt_come_first(toys: Any) -> None:
    target, _ = make_pair(toys, slots=2)
    scheduler, order = toys.scheduler(target), []

    class Box:
        def __init__(self, name: str) -> None:
            self.name = name

        def put(self, *events: Event) -> None:
            order.extend(self.name for event in events if isinstance(event, Finished))

    for name in "ab":
        prompt = [ord(name) % 30, 3]
        scheduler.add([scheduler.make(Box(name), prompt, sample=i, max_new_tokens=2) for i in range(3)])
    scheduler.run()
    assert order == ["a", "b", "a", "a", "b", "b"]


def test_the_figures_of_a_text_that_has_ended_stand_still(toys: Any) -> None:
    target, _ = make_pair(toys, slots=1)
    scheduler = toys.scheduler(target)
    boxes = [scheduler.write(PROMPT) for _ in range(2)]
    scheduler.step()
    scheduler.end_all()
    for box in boxes:
        assert box.text.tally.statistics() == box[-1].statistics


def counted(call: Callable[[], Any]) -> tuple[int, Any]:
    """Number of lines and calls of Python that a call runs through, and what it returns."""
    steps, before = 0, sys.gettrace()

    def trace(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return trace

    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return steps, result


def test_thousands_of_slots_cost_no_look_at_each_pair_of_them() -> None:
    steps, taken = counted(lambda: Slots(8000).take(PROMPT, ""))
    assert steps < 100 * 8000
    assert taken is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_common_prefix_is_that_of_a_loop(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        first, second = ([rng.randrange(2) for _ in range(rng.randrange(7))] for _ in range(2))
        expected = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        assert common_prefix(first, second) == (min(len(first), len(second)) if expected is None else expected)


def test_long_prefixes_in_slots_are_compared_without_a_loop_over_tokens() -> None:
    text, slots = list(range(1000, 31000)), Slots(9)
    for _ in range(8):
        (taken,) = slots.take(text, "") or ()
        taken.target_length = len(text)
    steps, (taken,) = counted(lambda: slots.take([*text[:29000], 1, 2], ""))
    assert taken.target_length == 29000
    assert steps < 1000


def test_k_is_chosen_by_load_while_prompts_are_read_in_every_step(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is never right must not be asked for ever because no step is of rounds alone."""
    target, draft = make_pair(toys, slots=2, agreement=0.0)
    clock = 0.0
    for model in (target, draft):

        def run_slowly(parts: Any, call: Any = model.run) -> Any:
            nonlocal clock
            clock += sum(len(part.tokens) for part in parts) / 1e3
            return call(parts)

        monkeypatch.setattr(model, "run", run_slowly)
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    scheduler, rng = toys.scheduler(target, draft, prefill_ms=2), random.Random(1)
    box = scheduler.write([1], k="auto", max_new_tokens=90)
    while not box.text.ended:
        if not scheduler.waiting:
            scheduler.write([rng.randrange(VOCAB) for _ in range(40)], max_new_tokens=1)
        scheduler.step()
    drafted = [event.drafted for event in box if isinstance(event, Round)]
    assert len(drafted) > 40
    assert sum(drafted[-20:]) < 20
