"""Key-value caches within a limit: texts are the same, wait for each other, and what is dropped is given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import mxspec
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import GenerationError
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slots

PROMPTS = ["a text", "a text that goes on", "another one", "a text that goes on and on", "the last of them"] * 2


def texts_of(engine: mxspec.Engine, **settings: object) -> list[tuple[int, ...]]:
    requests = [mxspec.Request(prompt=prompt, temperature=0, max_new_tokens=24, **settings) for prompt in PROMPTS]
    return [tuple(answer.token_ids) for answer in engine.run(requests)]


def one_text(engine: mxspec.Engine) -> int:
    """Bytes of the largest slot."""
    sessions = [engine.target] if engine.draft is None else [engine.target, engine.draft]
    return Slots(1, sessions).bytes_of(engine.target.capacity)


@pytest.mark.parametrize("texts", [1, 2, 3])
def test_texts_are_the_same_within_any_limit(tiny_bundles: dict[str, Path], texts: int) -> None:
    with mxspec.Engine(tiny_bundles["near"], slots=4) as engine:
        wanted, limit = texts_of(engine), texts * one_text(engine)
    with mxspec.Engine(tiny_bundles["near"], slots=4, cache_memory=limit) as engine:
        handles = [engine.generate(prompt, temperature=0, max_new_tokens=24) for prompt in PROMPTS]
        found = []
        for handle in handles:
            ids: list[int] = []
            for event in handle:
                assert engine.running <= texts
                assert engine.cache_bytes <= limit
                if isinstance(event, mxspec.Token):
                    ids.append(event.id)
            found.append(tuple(ids))
        assert found == wanted
        assert texts_of(engine) == wanted


def test_a_text_that_can_never_fit_is_refused_with_the_figure(tiny_bundles: dict[str, Path]) -> None:
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        limit = one_text(engine) - 1
    with (
        mxspec.Engine(tiny_bundles["near"], slots=2, cache_memory=limit) as engine,
        pytest.raises(
            GenerationError,
            match=r"cache memory: a prompt of 1 tokens and 64 new ones may take 64 KiB, and the engine has 63;",
        ),
    ):
        engine.generate([65], max_new_tokens=64)


def test_a_beginning_is_used_again_while_there_is_room(tiny_bundles: dict[str, Path]) -> None:
    prompt = list(b"the beginning that several texts have in common")
    with mxspec.Engine(tiny_bundles["near"], slots=4) as engine:
        limit = 2 * one_text(engine)
    with mxspec.Engine(tiny_bundles["near"], slots=4, cache_memory=limit) as engine:
        reused = []
        for last in (b"a", b"b", b"c"):
            handle = engine.generate([*prompt, *last], temperature=0, max_new_tokens=8, ignore_eos=True)
            reused.append(handle.result().statistics.reused_tokens)
    assert reused == [0, len(prompt), len(prompt)]


def test_a_forked_process_is_told_so_though_the_lock_was_held(tiny_bundles: dict[str, Path]) -> None:
    with mxspec.Engine(tiny_bundles["near"], slots=2) as engine:
        worker = engine._worker
        with ThreadPoolExecutor(1) as other, worker._changed, pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "_pid", -1)
            for ask in (lambda: engine.generate("x"), engine.drop_idle):
                error = other.submit(ask).exception(timeout=5)
                assert isinstance(error, GenerationError)
                assert "make another after the fork" in str(error)


def test_slots_drop_what_was_not_used_for_longest_and_the_lender_last() -> None:
    class Toy:
        encoder = None

        def slot_bytes(self, tokens: int, source: int) -> int:
            return tokens

        def goes_on(self, slot: int, length: int) -> bool:
            return True

        def release(self, slot: int, first: int = 0) -> None:
            released.append(slot)

        def copy_prefix(self, source: int, destination: int, length: int) -> None:
            copied.append((source, destination, length))

    released: list[int] = []
    copied: list[tuple[int, int, int]] = []
    slots = Slots(4, [Toy()], limit=100)  # type: ignore[list-item]
    for number, length in enumerate((30, 30, 30)):
        (taken,) = slots.take([number] * length, "", most=length) or pytest.fail("there is room")
        taken.target_length = length
        slots.free(taken)
    assert slots.cache_bytes == 90
    released.clear()
    (taken,) = slots.take([0] * 25, "", most=40) or pytest.fail("there is room")
    assert (copied, taken.target_length, taken.index) == ([(0, 3, 24)], 24, 3)
    assert released == [1, 3]  # slot 0 lends its beginning
    assert slots.take([5], "", most=61) is None
    (other,) = slots.take([5], "", most=60) or pytest.fail("there is room")
    assert (other.index, released) == (0, [1, 3, 2, 0])
    assert slots.cache_bytes <= 100


def test_memory_from_a_token_on_is_given_back(tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    session = Session.of(bundle, "target", 2)
    session.run([session.part(slot, 0, [65] * 90, 1) for slot in (0, 1)])
    before = {name: cache.copy() for name, cache in session.caches.items()}
    session.release(1, 40)
    for name, cache in session.caches.items():
        assert np.array_equal(cache[0], before[name][0])
        assert np.array_equal(cache[1, :, :40], before[name][1, :, :40])
    session.release(1)
    assert all(np.array_equal(cache[0], before[name][0]) for name, cache in session.caches.items())
