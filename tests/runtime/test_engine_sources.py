"""The engine on a compiled pair of T5s: transformers' own text, and the same bits in every company."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec import Engine
from mxspec.formats.errors import GenerationError
from mxspec.formats.manifest import ModelName
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session

SOURCES = ["hello there", "x", "a source that is longer than a chunk of sixteen"]
START, LONGEST = 256, 48
DECODED = [START, 104, 101, 108, 99, 3, 3, 200, 17]


@pytest.fixture(scope="module")
def engine(t5_bundle: Path) -> Engine:
    return Engine(t5_bundle)


def transformers_text(checkpoint: Path, ids: Sequence[int], **settings: Any) -> list[int]:
    """What transformers writes greedily in float32, without what the decoder begins with."""
    import torch
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    found = model.generate(torch.tensor([ids]), do_sample=False, **settings)[0]
    return [int(token) for token in found[1:]]


@pytest.mark.parametrize("source", SOURCES)
def test_greedy_text_is_that_of_transformers(t5_bundle: Path, source: str) -> None:
    """The baseline has the checkpoint's own weights; the packed target draws on it with a draft."""
    with Engine(t5_bundle, model="baseline") as engine:
        ids = engine.encode(source)
        expected = transformers_text(t5_bundle.parent / "target", ids, max_new_tokens=40)
        for how in ({"drafter": "none"}, {"k": 4}, {"k": 8, "drafter": "suffix"}):
            assert engine.generate(source, max_new_tokens=40, **how).result().token_ids == expected


@pytest.mark.parametrize("model", ["target", "draft"])
def test_scores_are_single_steps(engine: Engine, model: ModelName) -> None:
    reader = Reader(Session.of(engine.bundle, model, 1))
    for source in ([5, 7, 9], list(range(LONGEST))):
        reader.begin(source)
        steps = np.stack([reader.forward([token], 1)[0].copy() for token in DECODED])
        np.testing.assert_array_equal(np.concatenate(list(engine.score(DECODED, source=source, model=model))), steps)


def test_an_engine_scores_the_model_that_it_writes_with(engine: Engine, t5_bundle: Path) -> None:
    source = [5, 7, 9]

    def scores(scorer: Engine, **asked: Any) -> NDArray[np.float32]:
        return np.concatenate(list(scorer.score(DECODED, source=source, **asked)))

    with Engine(t5_bundle, model="baseline") as plain:
        np.testing.assert_array_equal(scores(plain), scores(plain, model="baseline"))
        np.testing.assert_array_equal(scores(plain, model="target"), scores(engine))
        assert not np.array_equal(scores(plain), scores(engine))


def rows_of(session: Session, slots: Sequence[int]) -> list[NDArray[np.float32]]:
    """The logits of DECODED in each slot, one slot a call."""
    return [session.run([Part(slot, 0, DECODED, len(DECODED))]).copy() for slot in slots]


@pytest.mark.parametrize("model", ["target", "draft", "baseline"])
def test_an_encoded_source_does_not_depend_on_other_sources(engine: Engine, model: ModelName) -> None:
    """Alone, with others in one call, over what another has left, copied, and beside entries that are not numbers."""
    rng = np.random.default_rng(1)
    sources = [rng.integers(0, 256, count).tolist() for count in (11, 1, LONGEST, 30)]
    session = Session.of(engine.bundle, model, 6)
    for slot, source in enumerate(sources):
        session.encode([(slot, source)])
    alone = rows_of(session, range(4))
    assert len({rows.tobytes() for rows in alone}) == 4
    assert session.encoder is not None
    for cache in session.encoder.caches.arrays.values():
        cache[:] = np.nan
    session.encode([(slot, source) for slot, source in zip((2, 5, 0, 3), sources, strict=True)])
    for rows, again in zip(alone, rows_of(session, (2, 5, 0, 3)), strict=True):
        np.testing.assert_array_equal(again, rows)
    session.copy_source(3, 1)
    session.encode([(3, sources[1]), (2, sources[1])])
    for expected, again in zip((3, 1, 1), rows_of(session, (1, 3, 2)), strict=True):
        np.testing.assert_array_equal(again, alone[expected])
    together = session.run([Part(1, 0, DECODED, 2), Part(0, 0, DECODED, 3), Part(5, 0, DECODED[:4], 1)])
    np.testing.assert_array_equal(together, np.concatenate([alone[3][-2:], alone[2][-3:], alone[1][3:4]]))


def test_a_beginning_that_is_copied_brings_its_source(engine: Engine) -> None:
    """Once: a slot that has it is not written again."""
    session = Session.of(engine.bundle, "target", 2)
    session.encode([(0, [5, 6, 7]), (1, list(range(LONGEST)))])
    expected, _ = rows_of(session, (0, 1))
    session.copy_prefix(0, 1, len(DECODED) - 1)
    last = len(DECODED) - 1
    np.testing.assert_array_equal(session.run([Part(1, last, DECODED[last:], 1)]), expected[-1:])
    assert session.encoder is not None
    for cache in session.encoder.caches.arrays.values():
        cache[0] = np.nan
    session.copy_prefix(0, 1, 1)
    np.testing.assert_array_equal(session.run([Part(1, 1, DECODED[1:], 8)]), expected[1:])


@pytest.mark.parametrize("k", [3, "auto"])
@pytest.mark.parametrize("drafter", NAMES)
def test_text_is_the_plain_text_whoever_guesses(engine: Engine, drafter: str, k: Any) -> None:
    if drafter not in engine.drafters:
        pytest.skip("the bundle was compiled without a text")
    hows: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 4, "verifier": "match"})
    for how in hows:
        for source in SOURCES:
            plain = engine.generate(source, max_new_tokens=30, drafter="none", **how).result()
            handle = engine.generate(
                source, max_new_tokens=30, drafter=drafter, k=None if drafter == "none" else k, **how
            )
            assert handle.result().token_ids == plain.token_ids
            assert handle.statistics.drafted > 0 or drafter == "none" or k == "auto"


def test_the_draft_is_often_right(engine: Engine) -> None:
    """Otherwise the equality above would show less than it seems to."""
    kept = [engine.generate(source, max_new_tokens=60, k=3).result().statistics.acceptance or 0 for source in SOURCES]
    assert 0.15 < np.mean(kept) < 1


def test_texts_equal_those_written_alone(t5_bundle: Path, engine: Engine) -> None:
    """Sources that come and go, some again, some together; their bits are in the log-probabilities."""
    rng = random.Random(3)
    sources = [[rng.randrange(256) for _ in range(rng.randrange(1, LONGEST + 1))] for _ in range(5)]
    wanted: list[tuple[list[int], dict[str, Any]]] = []
    for _ in range(24):
        settings: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 30), "k": rng.choice([0, 2, 5]), "logprobs": 1}
        settings |= {"decoder_prompt": [7, 8] if rng.random() < 0.3 else None}
        settings |= {"temperature": 0.9, "seed": rng.randrange(9)} if rng.random() < 0.5 else {}
        wanted.append((rng.choice(sources), settings))
    with Engine(t5_bundle, slots=4, prefill_ms=1e-3) as busy:
        handles = [busy.generate(source, **settings) for source, settings in wanted]
        together = [handle.result() for handle in handles]
    for number, ((source, settings), found) in enumerate(zip(wanted, together, strict=True)):
        alone = engine.generate(source, **settings, cache_key=str(number)).result()  # nothing is reused
        assert alone.statistics.reused_tokens == 0
        assert (found.token_ids, found.logprobs) == (alone.token_ids, alone.logprobs)
    assert any(found.statistics.reused_tokens for found in together)


def test_an_answer_reuses_its_own_prefix(engine: Engine) -> None:
    whole = engine.generate(SOURCES[0], max_new_tokens=20).result()
    for given in (whole.token_ids[:7], [START, *whole.token_ids[:7]]):
        rest = engine.generate(SOURCES[0], decoder_prompt=given, max_new_tokens=13).result()
        assert rest.token_ids == whole.token_ids[7:]
        assert rest.statistics.reused_tokens >= len(engine.encode(SOURCES[0]))
    text = engine.generate(SOURCES[0], decoder_prompt="abc", max_new_tokens=5).result()
    assert (
        text.token_ids == engine.generate(SOURCES[0], decoder_prompt=[97, 98, 99], max_new_tokens=5).result().token_ids
    )


def test_the_context_is_the_decoders(engine: Engine) -> None:
    """The source takes none of it; a text that is as long as the context ends there."""
    source = list(range(LONGEST))
    for k in (0, 5):
        found = engine.generate(source, max_new_tokens=500, k=k, ignore_eos=True).result()
        assert (found.reason, len(found.token_ids)) == ("context_end", engine.target.capacity)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prompt": [1] * (LONGEST + 1)}, "prompt: got 49 tokens, expected 1 to 48, the encoder's context length"),
        ({"prompt": []}, "prompt: got 0 tokens, expected 1 to 48"),
        ({"prompt": [1], "decoder_prompt": [1] * 96}, "decoder_prompt: got 97 tokens, expected 1 to 96"),
        ({"prompt": [1], "decoder_prompt": [1, 999]}, "got token id 999"),
        ({"messages": [{"role": "user", "content": "x"}]}, "has no chat template"),
    ],
)
def test_sources_and_prompts_that_are_too_long_are_refused(engine: Engine, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(GenerationError, match=says):
        engine.generate(**settings)


def test_score_takes_a_source_if_there_is_an_encoder(engine: Engine, tiny_bundles: dict[str, Path]) -> None:
    with pytest.raises(GenerationError, match="source: got none, expected what the encoder reads"):
        engine.score([START, 1])
    with Engine(tiny_bundles["near"]) as plain:
        with pytest.raises(GenerationError, match="source: got one without an encoder"):
            plain.score([1, 2], source=[3])
        with pytest.raises(GenerationError, match="decoder_prompt: given, but no model of the bundle has an encoder"):
            plain.generate("x", decoder_prompt="y")


def test_tasks_come_from_the_recipe(engine: Engine) -> None:
    assert engine.task("reverse") == "reverse: "
    with pytest.raises(GenerationError, match=r"task: got 'revers', expected reverse \(did you mean 'reverse'\?\)"):
        engine.task("revers")
