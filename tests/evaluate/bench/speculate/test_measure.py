"""Speculation beside plain decoding: acceptance, costs and the formula hang together."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench.speculate.measure import Rounds, beside_plain
from mxspec.evaluate.bench.speculate.result import SpeculationResult
from mxspec.runtime.events import Round

Specbench = Callable[..., Result]


def test_every_drafter_is_timed_at_every_k(
    tiny_bundles: dict[str, Path], specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--prompts=2", "--new-tokens=12", "--repetitions=1", "--drafter=model", "--drafter=suffix"]
    options += [*(f"--k={k}" for k in (1, 4, 8)), "--k=auto", "--json"]
    result = specbench("speculate", str(tiny_bundles["near"]), *options)
    assert result.exit_code == 0, result.output
    found = SpeculationResult.model_validate(json.loads(result.stdout))
    assert [(p.drafter, p.k) for p in found.points] == [(d, k) for d in ("model", "suffix") for k in (1, 4, 8, "auto")]
    for point in found.points:
        assert len(point.trials) == 2
        if isinstance(point.k, int):
            assert 1 <= point.tokens_per_round <= point.k + 1
            assert 0 <= point.drafted_per_round <= point.k
        assert 0 < point.answer_seconds.median <= point.answer_seconds.p90
    assert {point.predicted is None for point in found.points if point.k == "auto"} == {True}


def one_round(drafted: int, accepted: int, *, draft: float, target: float, outside: float = 0.0) -> Round:
    evaluated = min(accepted + 1, drafted)
    return Round(drafted, evaluated, accepted, accepted + 1, draft, target, draft + target + outside)


def test_an_answer_is_compared_with_the_formula_for_its_own_rounds() -> None:
    """Two texts at K = 2, one twice as slow: its own plain rounds are as slow. Leviathan et al. (2023), theorem 3.8."""
    plain, runs = [], []
    for slow, kept in ((1.0, (2, 2, 0, 1)), (2.0, (0, 0, 1, 0))):
        plain.append(Rounds([one_round(0, 0, draft=0, target=slow) for _ in range(7)]))
        runs.append(Rounds([one_round(2, n, draft=2 * 0.1 * slow, target=1.2 * slow) for n in kept]))
    row = beside_plain(plain, runs)
    alphas = (5 / 7, 1 / 5)
    predicted = [(1 - a**3) / ((1 - a) * (2 * 0.1 + 1.2)) for a in alphas]
    expected = {"c": 0.1, "v": 1.2, "predicted": statistics.median(predicted), "outside_models": 0}
    assert row == pytest.approx(expected)


def test_a_bundle_without_a_draft_is_measured_with_a_drafter_that_needs_none(
    tiny_bundles: dict[str, Path], specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.chdir(tmp_path)
    options = ("--prompts", "1", "--new-tokens", "8", "--repetitions", "1", "--k", "2", "--json")
    done = specbench("speculate", str(alone), *options, "--drafter", "suffix")
    assert done.exit_code == 0, done.output
    refused = specbench("speculate", str(alone), *options)
    assert refused.exit_code == 1
    assert "holds no draft" in refused.stderr
