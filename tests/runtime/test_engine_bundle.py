"""The engine on compiled bundles: speculative text is plain text, and scored rows are single steps, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec import Engine, Grammar
from mxspec.formats.errors import BundleError, GenerationError
from mxspec.formats.manifest import ModelName
from mxspec.runtime import ops
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.events import Event, Finished, Round, Token
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.request import Request

CONTEXT, K_MAX, CHUNK, VOCAB = 96, 8, 16, 259  # of the tiny bundles in tests/conftest.py
PROMPTS = ["hello there", "x", "a prompt that is longer than one chunk of sixteen tokens"]
DEMO_PROMPTS = ["def read_lines(path):\n    ", "import os\nimport sys\n\n\nclass "]


@pytest.fixture(scope="module", params=["near", "random"])
def tiny(request: pytest.FixtureRequest, tiny_bundles: dict[str, Path]) -> Engine:
    return Engine(tiny_bundles[request.param])


@pytest.fixture(scope="module")
def near(tiny_bundles: dict[str, Path]) -> Engine:
    return Engine(tiny_bundles["near"])


@pytest.fixture(scope="module", params=["real", "random"])
def demo(request: pytest.FixtureRequest, demo_bundles: dict[str, Path]) -> tuple[str, Engine]:
    return request.param, Engine(demo_bundles[request.param])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = ops.threads()
    ops.set_threads(2)
    yield
    ops.set_threads(before)


def ids_of(events: Iterator[Event]) -> list[int]:
    return [event.id for event in events if isinstance(event, Token)]


def poison(session: Session) -> None:
    """From now on every call finds NaN after what is valid in its slots, and in all other slots."""
    run = session.run

    def poisoned(parts: Sequence[Part]) -> NDArray[np.float32]:
        for part in parts:
            for cache in session.caches.values():
                cache[part.slot, :, part.past :] = np.nan
        return run(parts)

    session.run = poisoned  # type: ignore[method-assign]


def reader_of(engine: Engine, name: ModelName) -> Reader:
    return Reader(Session.of(engine.bundle, name, 1))


def single_steps(reader: Reader, ids: Sequence[int]) -> NDArray[np.float32]:
    reader.rollback(0)
    return np.stack([reader.forward([token], 1)[0].copy() for token in ids])


@pytest.mark.parametrize("k", range(1, K_MAX + 1))
def test_greedy_text_is_the_plain_text(tiny: Engine, k: int) -> None:
    for prompt in PROMPTS:
        plain = ids_of(tiny.generate(prompt, max_new_tokens=40, drafter="none"))
        text = tiny.generate(prompt, max_new_tokens=40, k=k)
        assert ids_of(text) == plain
        assert text.statistics.drafted > 0


def test_greedy_text_is_the_plain_text_where_k_is_chosen_by_cost(tiny: Engine) -> None:
    for prompt in PROMPTS:
        plain = ids_of(tiny.generate(prompt, max_new_tokens=60, drafter="none"))
        default, auto = tiny.generate(prompt, max_new_tokens=60), tiny.generate(prompt, max_new_tokens=60, k="auto")
        assert ids_of(default) == ids_of(auto) == plain
        assert default.statistics.emitted == default.statistics.accepted + default.statistics.rounds


@pytest.mark.parametrize("k", [3, "auto"])
@pytest.mark.parametrize("drafter", NAMES)
def test_text_is_the_plain_text_whoever_guesses(near: Engine, drafter: str, k: Any) -> None:
    """Greedy, and by sample and match under a seed."""
    hows: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 4, "verifier": "match"})
    for how in hows:
        for prompt in (PROMPTS[0], "a text that repeats a text that "):
            plain = ids_of(near.generate(prompt, max_new_tokens=30, drafter="none", **how))
            text = near.generate(prompt, max_new_tokens=30, drafter=drafter, k=None if drafter == "none" else k, **how)
            assert ids_of(text) == plain
            assert text.statistics.drafter == drafter
            assert text.statistics.drafted > 0 or drafter == "none" or k == "auto"


def test_past_answers_are_guessed_where_they_are_shared(tiny_bundles: dict[str, Path]) -> None:
    with Engine(tiny_bundles["near"], shared_suffixes=1 << 20) as engine:
        first, second, other = (
            engine.generate(PROMPTS[0], max_new_tokens=40, drafter="suffix", k=8, cache_key=key).result()
            for key in ("a", "a", "b")
        )
    assert first.token_ids == second.token_ids == other.token_ids
    assert second.statistics.rounds < 10 < first.statistics.rounds == other.statistics.rounds


def test_the_near_draft_is_often_right_and_the_random_one_hardly_ever(tiny_bundles: dict[str, Path]) -> None:
    """Otherwise the equality above would show less than it seems to."""
    acceptance = {}
    for name, path in tiny_bundles.items():
        engine = Engine(path)
        texts = [engine.generate(prompt, max_new_tokens=40, k=4) for prompt in PROMPTS]
        assert all(len(set(ids_of(text))) > 5 for text in texts)
        acceptance[name] = sum(t.statistics.accepted for t in texts) / sum(t.statistics.evaluated for t in texts)
    assert 0.2 < acceptance["near"] < 0.95
    assert acceptance["random"] < 0.1


@pytest.mark.demo
@pytest.mark.parametrize("k", range(1, K_MAX + 1))
def test_greedy_demo_text_is_the_plain_text(demo: tuple[str, Engine], k: int) -> None:
    name, engine = demo
    for prompt in DEMO_PROMPTS:
        plain = ids_of(engine.generate(prompt, max_new_tokens=60, drafter="none"))
        text = engine.generate(prompt, max_new_tokens=60, k=k)
        assert ids_of(text) == plain
        acceptance = text.statistics.acceptance
        assert acceptance is not None
        assert acceptance < 0.2 if name == "random" else 0 < acceptance < 1


@pytest.mark.parametrize("model", ["target", "draft"])
def test_scored_rows_are_single_steps_bit_for_bit(near: Engine, model: Any, two_threads: None) -> None:
    ids = near.encode(PROMPTS[2])
    scorer = reader_of(near, model)
    steps = single_steps(scorer, ids)
    assert steps.shape == (len(ids), VOCAB)
    np.testing.assert_array_equal(np.concatenate(list(near.score(ids, model=model))), steps)
    for width in range(2, K_MAX + 2):
        scorer.rollback(0)
        rows = [scorer.append(ids[i : i + width], len(ids[i : i + width])).copy() for i in range(0, len(ids), width)]
        np.testing.assert_array_equal(np.concatenate(rows), steps)
    ops.set_threads(1)
    np.testing.assert_array_equal(np.concatenate(list(near.score(ids, model=model))), steps)


@pytest.mark.demo
def test_scored_demo_rows_are_single_steps_bit_for_bit(demo: tuple[str, Engine]) -> None:
    _, engine = demo
    ids = engine.encode(DEMO_PROMPTS[0] * 12)
    scorer = reader_of(engine, "target")
    steps = single_steps(scorer, ids)
    np.testing.assert_array_equal(np.concatenate(list(engine.score(ids))), steps)
    scorer.rollback(0)
    rows = [scorer.append(ids[i : i + 5], len(ids[i : i + 5])).copy() for i in range(0, len(ids), 5)]
    np.testing.assert_array_equal(np.concatenate(rows), steps)


def test_scores_come_in_chunks_and_predict_the_next_token(near: Engine) -> None:
    ids = near.encode(PROMPTS[0])
    answer = ids_of(near.generate(ids, max_new_tokens=30))
    chunks = list(near.score([*ids, *answer]))
    assert [len(chunk) for chunk in chunks] == [16, 16, len(ids) + 30 - 32]
    best = np.concatenate(chunks).argmax(axis=1)
    assert list(best[len(ids) - 1 : -1]) == answer


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stale_cache_entries_never_leak(near: Engine, tiny_bundles: dict[str, Path], temperature: float) -> None:
    settings: dict[str, Any] = {"k": 5, "max_new_tokens": 60, "temperature": temperature, "seed": 4}
    clean = ids_of(near.generate(PROMPTS[0], **settings))
    poisoned = Engine(tiny_bundles["near"])
    poison(poisoned.target)
    poison(poisoned.draft)
    texts = [poisoned.generate(prompt, **settings) for prompt in (PROMPTS[0], PROMPTS[1], PROMPTS[0])]
    assert [ids_of(text) for text in texts][::2] == [clean, clean]
    assert np.isnan(poisoned.target.caches["key.0"]).any()


def test_the_text_ends_with_the_context(tiny: Engine) -> None:
    prompt = [1] * (CONTEXT - 20)
    plain = list(tiny.generate(prompt, max_new_tokens=1000, drafter="none"))
    for k in (1, 4, 8):
        events = list(tiny.generate(prompt, max_new_tokens=1000, k=k))
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "context_end"
        assert ids_of(iter(events)) == ids_of(iter(plain))
        assert len(ids_of(iter(events))) == 21


def test_padding_ids_are_never_chosen_nor_scored(near: Engine) -> None:
    """The tiny models have more logits than ids, and those beyond are by far the largest."""
    assert near.bundle.manifest.models["target"].vocab_size == 272
    assert near.bundle.manifest.models["draft"].vocab_size == 264
    for temperature in (0.0, 1.0):
        assert max(ids_of(near.generate("pad", k=4, max_new_tokens=50, temperature=temperature))) < VOCAB
    assert next(near.score([1, 2, 3])).shape == (3, VOCAB)


def test_an_end_of_text_of_the_manifest_ends_a_sampled_text(near: Engine) -> None:
    reasons = set()
    for seed in range(20):
        events = list(near.generate("end", k=3, max_new_tokens=80, temperature=3.0, seed=seed))
        ids = ids_of(iter(events))
        assert isinstance(events[-1], Finished)
        assert (events[-1].reason == "eos") == (ids[-1] in (257, 258))
        assert not {257, 258} & set(ids[:-1])
        reasons.add(events[-1].reason)
    assert "eos" in reasons


def test_sampling_repeats_with_its_seed_and_differs_with_another(near: Engine) -> None:
    settings: dict[str, Any] = {"k": 4, "max_new_tokens": 40, "temperature": 1.0, "top_k": 20, "top_p": 0.9}
    texts = [ids_of(near.generate("seed", seed=seed, **settings)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_events_come_round_by_round_and_end_with_finished(near: Engine) -> None:
    events = list(near.generate(PROMPTS[0], k=4, max_new_tokens=20))
    tokens, rounds = 0, 0
    for event in events[:-1]:
        tokens += isinstance(event, Token)
        rounds += isinstance(event, Round)
        if isinstance(event, Round):
            assert tokens == event.emitted
            tokens = 0
    assert events[-1] == Finished("max_new_tokens", events[-1].statistics, events[-1].tail)  # type: ignore[union-attr]
    assert events[-1].statistics.rounds == rounds  # type: ignore[union-attr]


def test_texts_at_the_same_time_equal_those_written_alone(near: Engine) -> None:
    settings: list[dict[str, Any]] = [
        {"k": 4},
        {"k": "auto"},
        {"k": 2, "temperature": 1.0, "seed": 1, "top_p": 0.9},
        {"drafter": "none", "repetition_penalty": 1.3},
        {"k": 3, "no_repeat_ngram_size": 2},
        {"k": 8, "temperature": 0.7, "seed": 2, "n": 3},
    ]
    requests = [
        Request(prompt=prompt, max_new_tokens=30, logprobs=1, **chosen) for prompt in PROMPTS for chosen in settings
    ]
    together = [near.submit(request) for request in requests]
    for request, handle in zip(requests, together, strict=True):
        with Engine(near.bundle.path, slots=1) as alone:
            for got, expected in zip(handle.results(), alone.submit(request).results(), strict=True):
                assert got.token_ids == expected.token_ids
                assert got.logprobs == expected.logprobs
                assert got.text == expected.text


def test_a_score_may_be_taken_while_texts_are_written(near: Engine) -> None:
    text = near.generate(PROMPTS[0], k=2, max_new_tokens=40)
    next(text)
    expected = np.concatenate(list(near.score([1] * (CHUNK + 1))))
    scores = near.score([1] * (CHUNK + 1))
    first = next(scores)
    list(near.generate(PROMPTS[1], k=2, max_new_tokens=3))
    np.testing.assert_array_equal(np.concatenate([first, *scores]), expected)
    assert len(ids_of(text)) == 39


@pytest.mark.parametrize(
    ("prompt", "settings", "says"),
    [
        ("", {}, "got 0 tokens"),
        ([], {}, "got 0 tokens"),
        ([1] * (CONTEXT + 1), {}, f"got {CONTEXT + 1} tokens, expected 1 to {CONTEXT}"),
        ([VOCAB], {}, "got token id 259 at position 0, expected 0 to 258"),
        ([-1], {}, "got token id -1"),
        (b"def", {}, "prompt: got bytes"),
        ([1.0, 2.0], {}, "prompt: got"),
        (["a", "b"], {}, "prompt: got"),
        (None, {}, "expected either a prompt or messages"),
        ("x", {"messages": []}, "expected either a prompt or messages"),
        ("x", {"k": "x"}, "k: got 'x', expected auto"),
        ("x", {"k": 2, "drafter": "none"}, "k: got 2, but no drafter proposes"),
        ("x", {"drafter": "modle"}, "drafter: got 'modle', expected one of model, suffix, "),
        ("x", {"k": "auto", "temperature": 1, "seed": 3, "verifier": "mrs"}, "k: got auto with a seed"),
        ("x", {"top_p": 0.9}, "top_p: given at temperature 0"),
        ("x", {"seed": "x", "temperature": 1}, "seed: got 'x'"),
        ("x", {"n": 2}, "n: got 2 at temperature 0"),
        ("x", {"best_of": 2}, "best_of: got 2 at temperature 0"),
        ("x", {"n": 3, "best_of": 2, "temperature": 1}, "best_of: got 2, expected a whole number of at least 3"),
        ("x", {"stop": ""}, "stop"),
        ("x", {"stop": "a", "grammar": Grammar.regex("a+")}, "stop: given with a grammar"),
        ("x", {"ignore_eos": True, "grammar": Grammar.regex("a+")}, "ignore_eos: given with a grammar"),
        ("x", {"min_new_tokens": 3, "grammar": Grammar.regex("a+")}, "min_new_tokens: given with a grammar"),
        (
            "x",
            {"min_new_tokens": 300},
            "min_new_tokens: got 300, expected at most 128, the maximum number of new tokens",
        ),
        ("x", {"logit_bias": {VOCAB: 1.0}}, "logit_bias: got token 259"),
        ("x", {"logprobs": -1}, "logprobs: got -1"),
        ("x", {"k": K_MAX + 1}, f"got {K_MAX + 1}, expected auto, or 0 to {K_MAX}"),
        ("x", {"k": -1}, "got -1"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens: got 0"),
        ("x", {"temperature": -1.0}, "temperature: got -1"),
        ("x", {"top_p": 0.0}, "top_p: got 0"),
    ],
)
def test_a_request_that_cannot_be_served_is_one_line(
    near: Engine, prompt: Any, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(GenerationError, match=says) as caught:
        near.generate(prompt, **settings)
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_is_refused_with_the_nearest_known_one(near: Engine) -> None:
    with pytest.raises(
        GenerationError, match=r"max_tokens: unknown request setting \(did you mean 'max_new_tokens'\?\)"
    ):
        near.generate("x", max_tokens=1)


def test_a_graph_that_fails_while_it_runs_is_one_line(near: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(binding: object) -> None:
        raise RuntimeError("a shape\nthat was changed")

    session = SimpleNamespace(run_with_iobinding=fail)
    monkeypatch.setattr(near.target, "session", session)
    with pytest.raises(BundleError, match=r"^target.onnx: ONNX Runtime cannot run it: a shape that was changed; the"):
        near.generate("x", max_new_tokens=2).result()


def test_the_error_names_an_invalid_bundle_or_a_missing_model(near: Engine, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such directory"):
        Engine(tmp_path / "none")
    with pytest.raises(BundleError, match="holds no baseline"):
        near.score([1, 2], model="baseline")
    with pytest.raises(GenerationError, match="threads: got 0"):
        Engine(near.bundle.path, threads=0)


def test_the_cache_is_written_in_place(near: Engine) -> None:
    """The valid entries of the very buffers that are bound change, and only those, in the slot that is named."""
    session = Session.of(near.bundle, "target", 3)
    for cache in session.caches.values():
        cache[:] = np.nan
    session.run([Part(1, 0, [5, 6, 7], 1)])
    for cache in session.caches.values():
        assert np.isfinite(cache[1, :, :3]).all()
        assert np.isnan(cache[1, :, 3:]).all()
        assert np.isnan(cache[[0, 2]]).all()


def test_a_slot_is_copied_and_given_back(near: Engine) -> None:
    session = Session.of(near.bundle, "target", 2)
    whole = session.run([Part(0, 0, [5, 6, 7, 8], 1)]).copy()
    session.copy_prefix(0, 1, 3)
    np.testing.assert_array_equal(session.run([Part(1, 3, [8], 1)]), whole)
    session.release(1)
    np.testing.assert_array_equal(session.run([Part(0, 3, [8], 1)]), whole)


def test_a_cache_costs_only_its_written_pages(tmp_path: Path) -> None:
    """In a context of 131,072 one token of a text must not take a huge page in each layer and head."""
    script = """
import resource, sys
import numpy as np
from mxspec.runtime.models.caches import Caches
caches = Caches([f"key.{layer}" for layer in range(64)], (8, 8, 131072, 128), np.dtype("float16")).arrays.values()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for cache in caches:
    cache[3, :, 0] = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 4 * 64 * 8 * 4 * 2  # KiB: a page for each layer, head, keys and values, and some more
