"""A target with an EAGLE-3 head, from checkpoints to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mxspec.compile.pipeline import compile_bundle
from mxspec.compile.progress import Stages
from mxspec.evaluate.lossless.command import certify
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, GenerationError
from mxspec.formats.manifest import Manifest
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.engine import Engine
from mxspec.runtime.request import Request
from tests.compile.heads.make_head import ROWS, TARGET_LOGITS, save_head
from tests.compile.heads.train_head import train_head
from tests.conftest import BOS, save_checkpoint

LAYERS = 4
PROMPTS = [[*b"a text that says what it is"], [*b"so it is"], [BOS, *b"and then"]]
LENGTH = 36
# The same layers of the target in each form: those that the states enter are 1 and 3.
FORMS: dict[str, dict[str, Any]] = {
    "nested": {"form": "nested", "ids": [0, 2]},
    "speculators": {"form": "speculators", "ids": [1, 3], "norm_before_residual": True, "norm_output": True},
}


def compile_pair(output: Path, target: Path, draft: object, /, *, with_baseline: bool, **changes: Any) -> Bundle:
    sizes = {"k_max": 4, "context_length": 96, "prefill_chunk": 16, "caches": "float32"}
    pair = Recipe.of_checkpoints(str(target), None if draft is None else str(draft))
    recipe = pair.with_changes(**{"target": {"format": "fp16"}, **sizes, **changes})
    compile_bundle(recipe, output, with_baseline=with_baseline, force=False, stages=Stages(Console(quiet=True)))
    return Bundle.open(output)


def compiled(folder: Path, head: Path, *, with_baseline: bool, **changes: Any) -> Bundle:
    return compile_pair(head.with_suffix(".bundle"), folder / "target", head, with_baseline=with_baseline, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_checkpoint(folder / "target", seed=5, logits=TARGET_LOGITS, layers=LAYERS)
    return folder


@pytest.fixture(scope="module", params=FORMS)
def bundle(folder: Path, request: pytest.FixtureRequest) -> Bundle:
    head = save_head(folder / request.param, states=2, **FORMS[request.param])
    train_head(head, folder / "target", PROMPTS, LENGTH)
    return compiled(folder, head, with_baseline=request.param == "nested")


def test_packed_pairs_with_calibration_are_lossless(folder: Path, tmp_path: Path) -> None:
    """The target writes its own calibration text, from the trace that gives states; the head is rounded to nearest."""
    head = save_head(tmp_path / "head", form="nested", ids=[0, 1, 2])
    changes = {"rounding": "gptq", "calibration_tokens": 256, "target": {"format": "mxfp6_e2m3"}}
    draft = {"format": "mxfp6_e3m2"}
    models = compiled(folder, head, with_baseline=False, **changes, draft=draft).manifest.models
    assert models["target"].rounding is not None
    assert models["target"].rounding.nearest == {}
    assert models["draft"].rounding is not None
    assert set(models["draft"].rounding.nearest.values()) == {"the draft reads hidden states"}
    with Engine(head.with_suffix(".bundle"), slots=2) as engine:
        assert len({tuple(engine.submit(asked(PROMPTS[0], k=k)).result().token_ids) for k in (0, 1, 4)}) == 1


def asked(prompt: list[int], **settings: Any) -> Request:
    return Request(prompt=prompt, **{"temperature": 0, "max_new_tokens": LENGTH, "ignore_eos": True, **settings})


def test_greedy_texts_are_the_targets_alone_and_in_company(bundle: Bundle) -> None:
    states = bundle.manifest.models["target"].states
    assert states is not None
    assert states.layers == (1, 3)
    draft = bundle.manifest.models["draft"]
    assert draft.ignored == ()
    assert draft.borrowed == ("model.embed_tokens.weight",)  # it has no embedding of its own, and other angles
    with Engine(bundle.path, slots=2) as engine:
        plain = [engine.submit(asked(prompt, k=0)).result().token_ids for prompt in PROMPTS]
        for k in (1, 2, 3, 4, "auto"):
            answers = [engine.submit(asked(PROMPTS[0], k=k)).result()]
            answers += engine.run([asked(prompt, k=k) for prompt in PROMPTS])  # type: ignore[arg-type]
            assert [answer.token_ids for answer in answers] == [plain[0], *plain]
            if k != "auto":
                figures = [answer.statistics for answer in answers]
                reached = np.sum([(*each.evaluated_by_position, 0, 0, 0)[:4] for each in figures], axis=0)
                kept = np.sum([(*each.accepted_by_position, 0, 0, 0)[:4] for each in figures], axis=0)
                assert (kept[:k] > 0.4 * reached[:k]).all(), (k, kept, reached)  # also by its own states
                assert [each.accepted for each in figures[:1]] == [each.accepted for each in figures[1:2]]


def test_sampled_texts_are_the_targets(bundle: Bundle) -> None:
    with Engine(bundle.path, slots=8) as engine:
        found = certify(engine, None, "quick", seed=1)
    assert found.passed, found.failures
    assert found.power[0].texts.startswith("sampled text")


def test_a_text_goes_on_from_what_another_has_read(bundle: Bundle) -> None:
    """Longer than a call reads, with a beginning that another text has left, in its slot or copied from there."""
    prompt = PROMPTS[0] + Engine(bundle.path, slots=1).submit(asked(PROMPTS[0], k=0)).result().token_ids[:20]
    with Engine(bundle.path, slots=1) as engine:
        alone = engine.submit(asked(prompt, k=3, max_new_tokens=12)).result()
    with Engine(bundle.path, slots=2) as engine:
        engine.submit(asked(PROMPTS[0], k=0)).result()  # the draft has read nothing of it
        first = engine.submit(asked(prompt, k=3, max_new_tokens=12)).result()
        handles = engine.submit_all([asked(prompt, k=3, max_new_tokens=12, cache_key="") for _ in range(2)])
        both = [handle.result() for handle in handles]
    assert first.statistics.reused_tokens > 40
    assert {tuple(answer.token_ids) for answer in (first, *both)} == {tuple(alone.token_ids)}
    assert {answer.statistics.accepted for answer in (first, *both)} == {alone.statistics.accepted}
    assert alone.statistics.accepted > 0.6 * alone.statistics.evaluated


@pytest.mark.parametrize("model", ["target", "baseline"])
def test_other_ways_to_write_give_the_same_text(bundle: Bundle, model: Any) -> None:
    if model not in bundle.manifest.models:
        pytest.skip("compiled without a baseline")
    with Engine(bundle.path, slots=4, model=model) as engine:
        plain = engine.submit(asked(PROMPTS[0], k=0)).result().token_ids
        assert engine.submit(asked(PROMPTS[0], k=3, drafter="suffix")).result().token_ids == plain
        traced = engine.submit(asked(PROMPTS[0], k=3, trace=True)).result()
        assert traced.token_ids == plain
        beams = [engine.submit(asked(PROMPTS[1], beams=2, k=k, max_new_tokens=8)).result() for k in (0, 2)]
        assert beams[0].token_ids == beams[1].token_ids
        matched = {"temperature": 1.0, "seed": 3, "verifier": "match"}
        drawn = [engine.submit(asked(PROMPTS[2], k=k, **matched)).result().token_ids for k in (0, 1, 4)]
        assert drawn[0] == drawn[1] == drawn[2]
        with pytest.raises(GenerationError, match="the bundle's draft reads hidden states or writes text, one"):
            engine.submit(asked(PROMPTS[0], drafter="hierarchical"))


def test_a_score_by_the_draft_is_what_it_proposes(bundle: Bundle) -> None:
    with Engine(bundle.path, slots=1) as engine:
        text = PROMPTS[0] + engine.submit(asked(PROMPTS[0], k=0)).result().token_ids
        rows = np.concatenate(list(engine.score(text, model="draft")))
        assert len(rows) == len(text)
        assert np.isfinite(rows[1:]).sum() == (len(text) - 1) * ROWS
        right = rows[len(PROMPTS[0]) - 1 : -1].argmax(axis=1) == text[len(PROMPTS[0]) :]
        assert right.mean() > 0.7


def test_a_manifest_whose_models_do_not_fit_is_refused(bundle: Bundle) -> None:
    manifest = json.loads((bundle.path / "manifest.json").read_text())

    def refused(model: str, states: object) -> str:
        broken = json.loads(json.dumps(manifest))
        broken["models"][model]["states"] = states
        with pytest.raises(BundleError) as caught:
            Manifest.parse(json.dumps(broken).encode())
        return str(caught.value)

    states = manifest["models"]["target"]["states"]
    assert "models.target.states: not those that the draft reads" in refused("target", states | {"layers": [1, 2]})
    assert "models.target.states: reads states, which is not supported" in refused("target", states | {"own": 64})
    assert "models.draft.states: gives states, which is not supported" in refused("draft", states)
