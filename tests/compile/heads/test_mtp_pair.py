"""A target with its own MTP layer as the draft, from the checkpoint to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mxspec.compile.commands.speccompile import main
from mxspec.evaluate.lossless.command import certify
from mxspec.formats.bundle import Bundle
from mxspec.runtime.engine import Engine
from tests.compile.heads.make_mtp import save_mtp
from tests.compile.heads.test_mtp_logits import target_of
from tests.compile.heads.test_pair import LENGTH, PROMPTS, asked, compile_pair
from tests.compile.heads.train_head import train_mtp


def compiled(folder: Path, mtp: str | None = "mtp", **changes: Any) -> Bundle:
    output = folder.with_suffix(f".{len(list(folder.parent.iterdir()))}.bundle")
    return compile_pair(output, folder, mtp, with_baseline=False, **changes)


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_mtp(tmp_path_factory.mktemp("pair") / "mimo", "mimo")
    train_mtp(folder, target_of(folder), PROMPTS, LENGTH)
    return folder


@pytest.fixture(scope="module")
def bundle(mimo: Path) -> Bundle:
    return compiled(mimo)


def test_greedy_texts_are_the_targets(bundle: Bundle) -> None:
    models = bundle.manifest.models
    assert models["target"].states is not None
    assert models["target"].states.layers == (3,)  # of the final norm, after three layers
    assert models["draft"].borrowed[:1] == ("model.embed_tokens.weight",)
    assert models["draft"].ignored == ()
    with Engine(bundle.path, slots=2) as engine:
        plain = [engine.submit(asked(prompt, k=0)).result().token_ids for prompt in PROMPTS]
        for k in (1, 4, "auto"):
            answers = list(engine.run([asked(prompt, k=k) for prompt in PROMPTS]))  # type: ignore[arg-type]
            assert [answer.token_ids for answer in answers] == plain
            if k == 4:
                figures = [answer.statistics for answer in answers]
                reached = np.sum([(*each.evaluated_by_position, 0, 0, 0, 0)[:4] for each in figures], axis=0)
                kept = np.sum([(*each.accepted_by_position, 0, 0, 0, 0)[:4] for each in figures], axis=0)
                assert (kept > 0.4 * reached).all(), (kept, reached)  # also by its own states


def test_sampled_texts_are_the_targets(bundle: Bundle) -> None:
    with Engine(bundle.path, slots=8) as engine:
        found = certify(engine, None, "quick", seed=1)
    assert found.passed, found.failures


def test_a_trimmed_layer_proposes_its_tokens(mimo: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a text that says what it is. " * 20)
    made = compiled(mimo, draft={"vocabulary": 64, "text": str(text)})
    draft = made.manifest.models["draft"]
    assert draft.vocab_size == 64
    with Engine(made.path, slots=1) as engine:
        plain, drafted = (engine.submit(asked(PROMPTS[0], k=k)).result() for k in (0, 3))
    assert plain.token_ids == drafted.token_ids


def test_a_mixtures_layer_is_lossless_and_packed(tmp_path: Path) -> None:
    packed = {"format": "mxfp6_e2m3"}
    made = compiled(save_mtp(tmp_path / "glm", "glm4_moe"), rounding="nearest", target=packed, draft=packed)
    models = made.manifest.models
    assert models["draft"].experts is not None
    assert models["target"].states is not None
    assert models["target"].states.layers == (4,)  # after the final norm
    with Engine(made.path, slots=2) as engine:
        texts = {tuple(engine.submit(asked(PROMPTS[0], k=k)).result().token_ids) for k in (0, 1, 4)}
    assert len(texts) == 1
    said = CliRunner().invoke(main, ["inspect", str(made.path)]).output
    assert "gives the hidden states that enter the output matrix\n" in said
    assert "reads the hidden states that enter the output matrix of the target\n" in said
    own = json.loads(CliRunner().invoke(main, ["inspect", str(made.path), "--json"]).output)
    assert own["models"]["draft"]["states"] == {"layers": [4], "width": 64, "own": 64}


def test_without_the_option_the_layers_are_left_out(mimo: Path) -> None:
    made = compiled(mimo, None)
    target = made.manifest.models["target"]
    assert "draft" not in made.manifest.models
    assert target.states is None
    assert len(target.ignored) == 16
    assert all(name.startswith("model.mtp_layers.0.") for name in target.ignored)
