"""Texts under sources, which encoders read: what is read once, what is shared, and that no text sees another's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.events import Finished, Round

VOCAB = 30
SOURCE = (3, 1, 4, 1, 5, 9, 2, 6)
START = [0]  # what every answer begins with


def make_pair(toys: Any, slots: int, chunk: int = 8, draft_sources: int = 32) -> tuple[Any, Any]:
    target, draft = toys.pair(VOCAB, slots, chunk=chunk, source_capacity=32)
    draft.source_capacity = draft_sources
    return target, draft


def read_of(session: Any) -> list[tuple[int, ...]]:
    """The sources that its encoder has read, in their order."""
    return [source for call in session.encoded for _, source in call]


@pytest.mark.parametrize("seed", range(8))
def test_every_text_equals_the_text_written_alone(toys: Any, seed: int) -> None:
    """Random arrivals of a few sources, some of which go on from a given beginning; cancels, lengths and settings."""
    rng = random.Random(seed)
    sources = [tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 33))) for _ in range(4)]
    target, draft = make_pair(toys, slots=rng.choice([1, 2, 3, 5]), chunk=rng.choice([3, 8, 64]))
    scheduler = toys.scheduler(target, draft, prefill_ms=rng.choice([1e-6, 0.02, 50]))
    running: list[tuple[Any, Any, Any, bool]] = []
    for _ in range(40):
        greedy = rng.random() < 0.4
        prompt = [*START, *([7, 8, 9][: rng.randrange(4)] if rng.random() < 0.5 else [])]
        settings: dict[str, Any] = {
            "source": rng.choice(sources),
            "max_new_tokens": rng.randrange(1, 20),
            "k": rng.choice([0, 1, 4, 8, "auto"] if greedy else [0, 1, 4, 8]),
            "temperature": 0.0 if greedy else 0.8,
            "seed": rng.randrange(100),
            "eos": [rng.randrange(VOCAB)],
            "cache_key": rng.choice(["", "", "", "b"]),
        }
        running.append((prompt, settings, scheduler.write(prompt, **settings), rng.random() < 0.2))
        for _ in range(rng.randrange(4)):
            scheduler.step()
            for _, _, other, victim in running:
                other.text.cancelled |= victim and rng.random() < 0.1
    scheduler.run()
    for prompt, settings, outbox, _ in running:
        alone = list(toys.generate(*make_pair(toys, slots=1, chunk=64), prompt, **settings))
        assert isinstance(outbox[-1], Finished)
        written = toys.tokens(outbox)
        assert written == toys.tokens(alone)[: len(written)]
        assert outbox[-1].reason == "cancelled" or written == toys.tokens(alone)


def test_simultaneous_sources_share_a_call_and_equal_ones_are_read_once(toys: Any) -> None:
    target, _ = make_pair(toys, slots=4)
    scheduler, sources = toys.scheduler(target), (SOURCE, SOURCE[:3], SOURCE, SOURCE[2:])
    boxes = [scheduler.write(START, source=source, max_new_tokens=6) for source in sources]
    scheduler.step()
    assert target.encoded == [[(0, SOURCE), (1, SOURCE[:3]), (3, SOURCE[2:])]]
    assert len(target.calls) == 1  # and their first tokens come in the same step
    scheduler.run()
    assert toys.tokens(boxes[0]) == toys.tokens(boxes[2]) != toys.tokens(boxes[1])


def test_a_call_reads_no_more_sources_than_the_longest_has_tokens(toys: Any) -> None:
    target, _ = make_pair(toys, slots=3)
    scheduler = toys.scheduler(target)
    sources = [tuple(range(20)), tuple(range(1, 13)), tuple(range(5))]
    for source in sources:
        scheduler.write(START, source=source, max_new_tokens=3)
    scheduler.run()
    assert [[source for _, source in call] for call in target.encoded] == [sources[:2], sources[2:]]


def test_while_others_wait_for_tokens_one_source_is_read_a_step(toys: Any) -> None:
    """What a token of a source costs is not known yet, or is too much."""
    target, _ = make_pair(toys, slots=4)
    scheduler = toys.scheduler(target, prefill_ms=1e-6)
    box = scheduler.write(START, source=SOURCE, max_new_tokens=30)
    scheduler.step()
    for first in range(3):
        scheduler.write(START, source=(first, *SOURCE), max_new_tokens=3)
    for calls in (2, 3, 4):
        before = len(box)
        scheduler.step()
        assert len(target.encoded) == calls
        assert len(target.encoded[-1]) == 1
        assert len(box) > before  # the first text gets a token in every step


def test_the_same_source_again_is_not_read_again(toys: Any) -> None:
    target, draft = make_pair(toys, slots=2)
    scheduler, reused = toys.scheduler(target, draft), []
    for source, k in ((SOURCE, 2), (SOURCE[1:], 0), (SOURCE, 2), (SOURCE[1:], 2)):
        box = scheduler.write(START, source=source, k=k, max_new_tokens=6)
        scheduler.run()
        reused.append(box.text.tally.statistics().reused_tokens)
    assert reused == [0, 0, len(SOURCE), len(SOURCE) - 1]
    assert read_of(target) == [SOURCE, SOURCE[1:]]
    assert read_of(draft) == [SOURCE, SOURCE[1:]]  # the second once its text drafts


def test_a_running_texts_source_is_copied_to_another_slot(toys: Any) -> None:
    target, draft = make_pair(toys, slots=3)
    scheduler, boxes = toys.scheduler(target, draft), []
    for _ in range(3):
        boxes.append(scheduler.write(START, source=SOURCE, k=3, max_new_tokens=12))
        scheduler.step()
        scheduler.step()
    scheduler.run()
    assert read_of(target) == read_of(draft) == [SOURCE]
    assert toys.tokens(boxes[0]) == toys.tokens(boxes[1]) == toys.tokens(boxes[2])


def test_samples_of_a_source_read_it_once(toys: Any) -> None:
    target, draft = make_pair(toys, slots=3)
    scheduler = toys.scheduler(target, draft)
    boxes = scheduler.write_samples(5, START, source=SOURCE, k=2, max_new_tokens=6, temperature=1.0, seed=3)
    scheduler.run()
    assert read_of(target) == read_of(draft) == [SOURCE]
    assert len({tuple(toys.tokens(box)) for box in boxes}) == 5


def test_a_beginning_is_shared_only_under_the_same_source(toys: Any) -> None:
    target, _ = make_pair(toys, slots=3)
    scheduler, reused = toys.scheduler(target), []
    prompt = [*START, 7, 8, 9]
    for source in (SOURCE, SOURCE[:-1], SOURCE, (*SOURCE, 0)):
        box = scheduler.write(prompt, source=source, max_new_tokens=3)
        scheduler.run()
        reused.append(box.text.tally.statistics().reused_tokens)
    assert reused == [0, 0, len(SOURCE) + len(prompt) - 1, 0]


def test_nothing_is_shared_across_cache_keys(toys: Any) -> None:
    target, draft = make_pair(toys, slots=4)
    scheduler = toys.scheduler(target, draft)
    for keys in (("a", "b"), ("a",), ("",)):
        for key in keys:
            scheduler.write(START, source=SOURCE, k=2, max_new_tokens=4, cache_key=key)
        scheduler.run()
    assert len(read_of(target)) == len(read_of(draft)) == 3


@pytest.mark.parametrize("k", [3, "auto"])
def test_the_drafts_encoder_reads_a_source_when_the_text_first_drafts(toys: Any, k: Any) -> None:
    target, draft = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target, draft)
    scheduler.write(START, source=SOURCE, k=0, max_new_tokens=8)
    scheduler.run()
    assert read_of(draft) == []
    box = scheduler.write(START, source=SOURCE, k=k, max_new_tokens=20)
    scheduler.run()
    assert read_of(draft) == [SOURCE]
    assert any(event.drafted for event in box if isinstance(event, Round))
    first = [len(call) for call in draft.encoded]
    assert first == [1]


def test_a_source_too_long_for_the_drafts_encoder_is_not_drafted(toys: Any) -> None:
    target, draft = make_pair(toys, slots=1, draft_sources=4)
    texts = [list(toys.generate(target, draft, START, source=SOURCE[:n], k=3, max_new_tokens=12)) for n in (4, 5)]
    drafted = [sum(event.drafted for event in events if isinstance(event, Round)) for events in texts]
    assert drafted[0] > 0 == drafted[1]
    assert read_of(draft) == [SOURCE[:4]]


def fail_at_29(session: Any) -> None:
    """From now on its encoder reads no source that has this token."""
    encode = session.encode

    def fails(sources: Any) -> None:
        if any(29 in tokens for _, tokens in sources):
            raise GenerationError("prompt", "the encoder cannot read it")
        encode(sources)

    session.encode = fails


def test_a_source_that_cannot_be_read_ends_its_own_texts(toys: Any) -> None:
    target, _ = make_pair(toys, slots=4)
    fail_at_29(target)
    scheduler, sources = toys.scheduler(target), (SOURCE, (1, 29), SOURCE[2:], (1, 29))
    boxes = [scheduler.write(START, source=source, max_new_tokens=5) for source in sources]
    scheduler.run()
    for box in (boxes[1], boxes[3]):
        assert [str(event) for event in box] == ["prompt: the encoder cannot read it"]
    alone = toys.generate(make_pair(toys, slots=1)[0], None, START, source=SOURCE[2:], max_new_tokens=5)
    assert toys.tokens(boxes[2]) == toys.tokens(list(alone))
    assert toys.tokens(boxes[0])


@pytest.mark.parametrize("k", [3, "auto"])
@pytest.mark.parametrize("drafter", ["model", "hierarchical"])
def test_a_source_that_the_draft_cannot_read_costs_its_own_text_the_draft(toys: Any, drafter: str, k: Any) -> None:
    """Its values do not fit the draft's caches, and the texts beside it draft as they do alone."""
    target, draft = make_pair(toys, slots=3)
    fail_at_29(draft)
    scheduler, who = toys.scheduler(target, draft), make_drafters(VOCAB, Draft(draft))[drafter]
    sources = (SOURCE, (1, 29), SOURCE[2:])
    boxes = [scheduler.write(START, source=source, k=k, max_new_tokens=24, drafter=who) for source in sources]
    scheduler.run()
    for box, source in zip(boxes, sources, strict=True):
        alone = toys.generate(make_pair(toys, slots=1)[0], None, START, source=source, max_new_tokens=24)
        assert toys.tokens(box) == toys.tokens(list(alone))
    drafted = [sum(event.drafted for event in box if isinstance(event, Round)) for box in boxes]
    assert drafted[1] == 0
    assert drafted[0] > 0 < drafted[2] or k == "auto"


def test_after_a_call_that_failed_no_source_is_reused(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = make_pair(toys, slots=2)
    scheduler = toys.scheduler(target)
    box = scheduler.write(START, source=SOURCE, max_new_tokens=30)
    scheduler.step()

    def fail(parts: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(target, "run", fail)
        scheduler.step()
    assert isinstance(box[-1], RuntimeError)
    scheduler.write(START, source=SOURCE, max_new_tokens=3)
    scheduler.run()
    assert read_of(target) == [SOURCE, SOURCE]


def test_a_suffix_is_copied_from_the_source(toys: Any) -> None:
    """An answer that is its source, after what it begins with: nearly all of it is guessed."""
    source = tuple(range(1, 25))

    def copying(text: tuple[int, ...]) -> Any:
        written = len(text) - len(source) - 2
        row = toys.random_logits(VOCAB, 5)(text).copy()
        row[source[written] if 0 <= written < len(source) else 29] = 20
        return row

    target = toys.Session(copying, source_capacity=32)
    events = list(toys.generate(target, None, START, source=source, k=8, max_new_tokens=24, drafter=SuffixDrafter()))
    assert toys.tokens(events) == list(source)
    assert len([event for event in events if isinstance(event, Round)]) <= 5


def test_a_round_counts_no_time_of_sources_as_the_drafts(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    clock = 0.0
    target, _ = make_pair(toys, slots=2)
    encode = target.encode

    def slowly(sources: Any) -> None:
        nonlocal clock
        clock += 3.0
        encode(sources)

    monkeypatch.setattr(target, "encode", slowly)
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    scheduler, boxes = toys.scheduler(target), []
    for source in (SOURCE, SOURCE[1:]):
        boxes.append(scheduler.write(START, source=source, max_new_tokens=4))
        scheduler.step()
    scheduler.run()
    first, second = (box.text.tally.statistics() for box in boxes)
    assert first.encode_seconds == second.encode_seconds == first.prefill_seconds == 3.0
    assert first.draft_seconds == 0.0
    assert first.decode_seconds == 3.0  # it waited for the other's source
