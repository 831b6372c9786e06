"""speccompile --rounding auto: the model writes its own calibration text, in time, and the cost is measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from mxspec.compile import pipeline
from mxspec.compile.check import cost
from mxspec.compile.check.cost import measure_cost
from mxspec.compile.weights.rounding import choose_rounding as choosing
from mxspec.compile.weights.rounding import speed
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import UnsupportedModelError
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import write_texts
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from tests.compile.commands.test_speccompile import done, speccompile, write_pair
from tests.conftest import DEMO

TOKENS = 512


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "choose_rounding", choosing.choose_rounding)
    monkeypatch.setattr(pipeline, "measure_cost", measure_cost)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"), "llama")


def compiled(pair: Path, output: Path, *options: object) -> tuple[dict[str, Any], str]:
    result = done(pair, "-o", output, "--calibration-tokens", TOKENS, "--json", *options)
    return json.loads(result.stdout)["models"]["target"], " ".join(result.stderr.split())


def test_the_default_calibrates_on_what_the_model_writes(pair: Path, tmp_path: Path) -> None:
    report, said = compiled(pair, tmp_path / "a.bundle")
    assert f"rounding with calibration on {TOKENS} tokens that the model writes: about 1 minute" in said
    length = 96  # the model's context
    tokens = TOKENS // length * length
    assert report["rounding"] == {
        "method": "gptq",
        "text_sha256": None,
        "tokens": tokens,
        "seed": 0,
        "damping": 0.01,
        "nearest": {},
        "few": {},
    }
    assert f"rounded by gptq on {tokens} tokens that the model wrote, seed 0" in " ".join(
        speccompile("inspect", tmp_path / "a.bundle").stdout.split()
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.bundle"]  # the writer is gone
    compiled(pair, tmp_path / "b.bundle")
    nearest, _ = compiled(pair, tmp_path / "c.bundle", "--rounding", "nearest")
    a, b, c = ((tmp_path / f"{name}.bundle" / "target.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    assert nearest["rounding"] is None
    assert report["cost"]["divergence"] < nearest["cost"]["divergence"]


def test_minutes_bound_the_tokens_whatever_else_the_machine_does(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes are work: 512 tokens take 1 minute here, where the clock would say an hour."""
    monkeypatch.setattr(speed, "FEWEST_TOKENS", 256)
    monkeypatch.setattr(choosing, "seconds_of", lambda work: 3541.0)
    monkeypatch.setattr(choosing, "_work", lambda model, formats, layered, tokens: 1000 + tokens)
    monkeypatch.setattr(speed, "A_MINUTE", 1000 + TOKENS)
    minutes = {"1": TOKENS, "0.9": 360, "0.8": 0}
    for given, tokens in minutes.items():
        report, said = compiled(pair, tmp_path / f"{given}.bundle", "--rounding-minutes", given)
        if tokens:
            assert f"rounding with calibration on {tokens} tokens that the model writes: about 60 minutes" in said
            assert report["rounding"]["tokens"] == tokens // 96 * 96
        else:
            assert "rounding to nearest: calibration on 2,048 tokens needs --rounding-minutes 3, more than 0.8" in said
            assert report["rounding"] is None


def test_a_text_to_calibrate_on_is_an_order(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "A_MINUTE", 1)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i % 100 + 3}" for i in range(900)))
    report, said = compiled(pair, tmp_path / "a.bundle", "--calibrate", text)
    assert f"rounding with calibration on {TOKENS} tokens of the --calibrate text" in said
    assert report["rounding"]["text_sha256"] is not None
    monkeypatch.setattr(choosing, "LayeredModel", _unsupported)
    result = speccompile(pair, "-o", tmp_path / "b.bundle", "--calibrate", text)
    assert result.exit_code == 1
    assert "calibrate: layers of another kind; leave --calibrate out, or say --rounding nearest" in result.output
    assert not (tmp_path / "b.bundle").exists()


def _unsupported(*_: object) -> None:
    raise UnsupportedModelError("layers of another kind")


def test_what_takes_too_long_is_not_measured(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "A_MINUTE", 1)
    report, said = compiled(pair, tmp_path / "a.bundle", "--rounding", "nearest")
    assert re.search(r"the cost in accuracy is not measured: it needs --rounding-minutes \d+; speccheck", said)
    assert report["cost"] is None


def test_no_minutes_round_to_nearest_and_measure_nothing(pair: Path, tmp_path: Path) -> None:
    report, said = compiled(pair, tmp_path / "a.bundle", "--rounding-minutes", "0")
    assert "rounding" not in said
    assert (report["rounding"], report["cost"]) == (None, None)


def test_the_cost_is_the_divergence_from_transformers_on_that_text(pair: Path, tmp_path: Path) -> None:
    report, _ = compiled(pair, tmp_path / "a.bundle", "--rounding", "nearest")
    bundle, length = Bundle.open(tmp_path / "a.bundle"), 96
    session = Session.of(bundle, "target", 8)
    openings = openings_of(bundle.path, Tokenizer.from_file(str(bundle.tokenizer_path)))
    windows = write_texts(session, openings, 8, length, cost.OTHER_SEED, lambda count: None)
    model = AutoModelForCausalLM.from_pretrained(pair.parent / "target").float().eval()
    found = []
    for window in windows:
        own = log_softmax(np.concatenate(list(Reader(session).score(window.tolist()))).astype(float), axis=1)
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(window)[None]).logits[0, :, : own.shape[1]].double().numpy()
        exact = log_softmax(logits, axis=1)
        found.append((np.exp(exact) * (exact - own)).sum(axis=1).mean())
    assert report["cost"]["divergence"] == pytest.approx(np.mean(found), rel=1e-5)
    assert report["cost"]["tokens"] == windows.size


def test_the_better_format_is_named_where_rounding_costs_much(tmp_path: Path) -> None:
    if not (DEMO / "target" / "model.safetensors").is_file():
        pytest.skip("recipes/demo/target: not there; python -m bench pair makes it")
    result = speccompile(
        *(DEMO / "target", "-o", tmp_path / "a.bundle", "--rounding", "nearest", "--target-format", "mxfp6_e3m2")
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    target = Bundle.open(tmp_path / "a.bundle").manifest.models["target"]
    assert target.cost is not None
    share = np.expm1(target.cost.divergence)
    assert f"costs about {share:.1%} of perplexity, measured on 2,048 tokens that it wrote" in said
    assert target.cost.e2m3_error is not None
    named = "--target-format mxfp6_e2m3 takes the same bytes" in said
    assert named == (share > 0.01)
    assert 0.2 < target.cost.e2m3_error < 0.5  # one bit of mantissa more, fewer values below the smallest
