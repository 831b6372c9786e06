"""Pairs with caches in MXINT8: the text is the same however it is drafted, in whatever company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mxspec
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import RecipeError
from tests.conftest import CONTEXT, compile_pair, save_checkpoint

RECIPES = Path(mxspec.__file__).parent / "recipes"
PROMPTS = ("a text", "another one that is longer than the first", "a text that goes on", "one")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, each_model_compiled_once: None) -> Path:
    folder = tmp_path_factory.mktemp("mxint8")
    target = save_checkpoint(folder / "target", seed=5, logits=272, heads=2)
    draft = save_checkpoint(folder / "draft", seed=5, logits=264, noise=0.1, heads=2)
    return compile_pair(folder, target, draft, k_max=6, prefill_chunk=16, caches="mxint8", with_baseline=True)


def texts(engine: mxspec.Engine, k: int, prompts: tuple[str, ...] = PROMPTS) -> list[tuple[int, ...]]:
    requests = [mxspec.Request(prompt=prompt, max_new_tokens=40, temperature=0, k=k) for prompt in prompts]
    return [tuple(answer.token_ids) for answer in engine.run(requests)]


def test_greedy_texts_are_the_same_at_every_k_and_in_company(bundle: Path) -> None:
    with mxspec.Engine(bundle, slots=1) as alone:
        wanted = [texts(alone, 0, (prompt,))[0] for prompt in PROMPTS]
    assert len({text[:4] for text in wanted}) > 1
    with mxspec.Engine(bundle, slots=3) as engine:
        for k in (0, 1, 3, 6):
            assert texts(engine, k) == wanted, k  # slots go on from what they have read before


def test_the_manifest_says_what_caches_hold_and_what_they_change(bundle: Path) -> None:
    assert Bundle.open(bundle).manifest.models["baseline"].caches == "float16"  # what the target is compared with
    for name in ("target", "draft"):
        entry = Bundle.open(bundle).manifest.models[name]
        assert entry.caches == "mxint8"
        assert entry.cache_bytes(3) == 3 * 2 * 2 * 33  # tokens, keys and values, layers, bytes of a head
        assert entry.referee is not None
        assert entry.referee.mxint8_caches is not None
        assert 0 < entry.referee.mxint8_caches < 0.05


def test_logits_are_near_that_of_float16_caches(bundle: Path, tmp_path: Path) -> None:
    folder = bundle.parent
    other = compile_pair(tmp_path, folder / "target", folder / "draft", k_max=6, prefill_chunk=16)
    scores = []
    for path in (bundle, other):
        with mxspec.Engine(path, slots=1) as engine:
            scores.append(np.concatenate([rows.copy() for rows in engine.score(range(60))]))
    difference, largest = np.abs(scores[0] - scores[1]), np.abs(scores[1]).max()
    assert 0 < difference.max() < 0.2 * largest
    assert difference.mean() < 0.01 * largest


def test_encoders_store_them_too(tmp_path: Path, each_model_compiled_once: None) -> None:
    model = RECIPES / "seq2seq" / "draft"
    path = compile_pair(tmp_path, model, model, k_max=4, source_length=256, caches="mxint8")
    sources = "def add(a, b):\n    return a + b\n", "def name(self):\n    return self._name\n"
    with mxspec.Engine(path, slots=2) as engine:
        found = [texts(engine, k, sources) for k in (0, 4)]
    assert found[0] == found[1]
    assert all(found[0])


def test_a_head_that_has_no_whole_blocks_is_one_line(tmp_path: Path) -> None:
    target, draft = (save_checkpoint(tmp_path / name, seed=5, logits=272) for name in ("target", "draft"))
    message = "caches: got mxint8, which needs heads of a multiple of 32 numbers, and LlamaForCausalLM has heads of 16"
    with pytest.raises(RecipeError, match=message):
        compile_pair(tmp_path, target, draft, caches="mxint8", context_length=CONTEXT)
