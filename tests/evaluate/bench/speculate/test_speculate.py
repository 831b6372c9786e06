"""Speculation beside plain decoding: acceptance, costs and the formula hang together."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from bench.shapes import random_bundle
from bench.shapes.known import SourceShape, source_draft_shape
from mxspec.evaluate.bench.speculate.bench import Run
from mxspec.evaluate.bench.speculate.measure import measured_at
from mxspec.evaluate.bench.speculate.result import SpeculateResult
from mxspec.runtime.events import Round

Specbench = Callable[..., Result]


def test_speculation_is_compared_with_the_formula(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--prompts=2", "--new-tokens=12", "--repetitions=1", "--drafter=model", "--drafter=suffix")
    result = specbench("speculate", str(tiny_bundles["near"]), *options, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(SpeculateResult.model_validate(report).drafters) == {"model", "suffix"}
    found = report["drafters"]["model"]
    rows = found["rows"]
    assert [row["k"] for row in rows] == list(range(1, 9))
    assert 0 <= found["auto"]["drafted_per_round"] <= 8
    assert len(found["auto"]["trials_speedup"]) == 2
    assert max(row["acceptance"] for row in report["drafters"]["suffix"]["rows"]) < 0.5
    for row in rows:
        assert row["speedup"] / row["predicted"] == pytest.approx(row["measured_over_predicted"], rel=0.5)
        assert 1 <= row["tokens_per_round"] <= row["k"] + 1
        assert 0 < row["answer_seconds"]["median"] <= row["answer_seconds"]["p90"]


def test_alternating_steps_are_compared_with_steps_alone(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--prompts", "1", "--new-tokens", "8", "--repetitions", "3")
    result = specbench("speculate", str(tiny_bundles["near"]), *options, "--json")
    assert result.exit_code == 0, result.output
    turns = json.loads(result.stdout)["turns"]
    assert len(turns["trials"]) == 3
    ratios = []
    for trial in turns["trials"]:
        assert set(trial) == {"alone_seconds", "turns_seconds"}
        assert all(set(seconds) == {"target", "draft"} for seconds in trial.values())
        ratios.append(sum(trial["turns_seconds"].values()) / sum(trial["alone_seconds"].values()))
    assert turns["over_alone"] == pytest.approx(statistics.median(ratios))
    for name in ("target", "draft"):
        over = [trial["turns_seconds"][name] / trial["alone_seconds"][name] for trial in turns["trials"]]
        assert turns[f"{name}_over_alone"] == pytest.approx(statistics.median(over))
        seconds = statistics.median(trial["turns_seconds"][name] for trial in turns["trials"])
        assert turns[f"{name}_seconds"] == seconds > 0


def test_an_imposed_acceptance_is_reached(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--prompts", "4", "--new-tokens", "24", "--repetitions", "1", "--acceptance")
    for imposed in (0.0, 1.0):
        result = specbench("speculate", str(tiny_bundles["random"]), *options, str(imposed), "--json")
        assert result.exit_code == 0, result.output
        assert {row["acceptance"] for row in json.loads(result.stdout)["drafters"]["model"]["rows"]} == {imposed}


def one_round(drafted: int, accepted: int, *, draft: float, target: float, outside: float = 0.0) -> Round:
    evaluated = min(accepted + 1, drafted)
    return Round(drafted, evaluated, accepted, accepted + 1, draft, target, draft + target + outside)


def test_an_answer_is_compared_with_the_formula_for_its_own_rounds() -> None:
    """Two texts at K = 2, one twice as slow: its own plain rounds are as slow. Leviathan et al. (2023), theorem 3.8."""
    plain, runs = [], []
    for slow, kept in ((1.0, (2, 2, 0, 1)), (2.0, (0, 0, 1, 0))):
        plain.append(Run([one_round(0, 0, draft=0, target=slow) for _ in range(7)]))
        runs.append(Run([one_round(2, n, draft=2 * 0.1 * slow, target=1.2 * slow) for n in kept]))
    row = measured_at(2, plain, runs)
    alphas = (5 / 7, 1 / 5)
    predicted = [(1 - a**3) / ((1 - a) * (2 * 0.1 + 1.2)) for a in alphas]
    speedups = [9 / 4 / 1.4, 5 / 4 / 1.4]
    assert (row.c, row.v) == (pytest.approx(0.1), pytest.approx(1.2))
    assert row.predicted == pytest.approx(statistics.median(predicted))
    assert row.speedup == pytest.approx(statistics.median(speedups))
    ratios = [speedup / formula for speedup, formula in zip(speedups, predicted, strict=True)]
    assert row.measured_over_predicted == pytest.approx(statistics.median(ratios))
    assert row.ideal_tokens_per_round == pytest.approx(statistics.mean((1 - a**3) / (1 - a) for a in alphas))


def test_a_bundle_without_a_draft_is_measured_with_a_drafter_that_needs_none(
    tiny_bundles: dict[str, Path], specbench: Specbench, tmp_path: Path
) -> None:
    alone = tmp_path / "alone.bundle"
    shutil.copytree(tiny_bundles["near"], alone)
    manifest = json.loads((alone / "manifest.json").read_text())
    draft = manifest["models"].pop("draft")
    manifest["recipe"].pop("draft")
    for name in (draft["graph"], draft["weights"]):
        (alone / name).unlink()
        del manifest["files"][name]
    (alone / "manifest.json").write_text(json.dumps(manifest))
    options = ("--prompts", "1", "--new-tokens", "8", "--repetitions", "1", "--json")
    done = specbench("speculate", str(alone), *options, "--drafter", "suffix")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["turns"] is None
    refused = specbench("speculate", str(alone), *options, "--acceptance", "0.5")
    assert refused.exit_code == 1
    assert "holds no draft" in refused.stderr


@pytest.mark.parametrize(("command", "prompt"), [("speculate", 64), ("batch", 128)])
def test_more_new_tokens_than_the_context_are_one_line(
    specbench: Specbench, tiny_bundles: dict[str, Path], command: str, prompt: int
) -> None:
    result = specbench(command, str(tiny_bundles["near"]), "--new-tokens", "33")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"--new-tokens: got 33 after prompts of {prompt} tokens, but the context of the bundle's" in result.stderr


def test_a_shape_with_an_encoder_is_measured(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = SourceShape("t5-1.1-xl", 64, 96, layers=1, heads=2, vocab_size=272, context_length=64, source_length=40)
    monkeypatch.setattr(
        random_bundle, "source_draft_shape", lambda target: replace(source_draft_shape(target), layers=1)
    )
    sizes = ("--prompts=2", "--source-tokens=36", "--new-tokens=40", "--repetitions=1")
    options = (*sizes, "--k=2", "--acceptance=0.75", "--json")
    result = specbench("speculate", str(random_bundle.random_bundle(small, tmp_path)), *options)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["drafters"]["model"]["rows"]
    assert row["acceptance"] == pytest.approx(0.75, abs=0.2)
    encoded = json.loads(result.stdout)["encoded"]
    assert encoded["source_tokens"] == 36
    assert encoded["seconds"] > 0
    assert 0 < encoded["share"] < 1


def test_prompts_are_sources_for_models_with_encoders(t5_bundle: Path, tmp_path: Path, specbench: Specbench) -> None:
    """Lines of a text, or random ones; the acceptance is imposed."""
    text = tmp_path / "in.txt"
    text.write_text("hello there\nx\n\nabc def\nthe quick brown fox\njumps\n")
    options = ("--prompts=4", "--new-tokens=60", "--repetitions=1", "--k=2", "--k=auto", "--acceptance=0.75", "--json")
    for prompts in ((), ("--text", str(text))):
        result = specbench("speculate", str(t5_bundle), *options, *prompts)
        assert result.exit_code == 0, result.output
        (row,) = json.loads(result.stdout)["drafters"]["model"]["rows"]
        assert row["acceptance"] == pytest.approx(0.75, abs=0.15)
