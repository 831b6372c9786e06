"""`specbench speculate`: points, figures that follow from trials, and work that is not done twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from mxspec.evaluate.bench.speculate.result import SpeculationPoint, SpeculationResult

Specbench = Callable[..., Result]
SMALL = ("--prompts", "2", "--new-tokens", "8", "--repetitions", "1", "--context", "16")


def test_points_follow_from_their_trials_and_a_killed_measurement_resumes(
    specbench: Specbench, demo_bundles: dict[str, Path], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle, record, work = str(demo_bundles["real"]), tmp_path / "record.json", tmp_path / "speculate.jsonl"
    grid = ["--k", "2", "--k", "auto", "--temperature", "0", "--temperature", "0.8", "--verifier", "mrs"]
    grid += ["--verifier", "match", "--batch", "1", "--batch", "2", "--threads", "1"]
    first = specbench("speculate", bundle, "--text", text, *SMALL, *grid[:2], "--threads", "1")
    assert first.exit_code == 0, first.output
    kept = work.read_text()
    work.write_text(kept + kept.splitlines()[-1][:50])  # killed while it wrote
    before = SpeculationPoint.model_validate_json(kept.splitlines()[-1])

    done = specbench("speculate", bundle, "--text", text, *SMALL, *grid, "--record", str(record))
    assert done.exit_code == 0, done.output
    assert "1 of 12 points were measured before" in done.stderr
    assert not work.exists()
    result = SpeculationResult.model_validate(json.loads(record.read_text())["result"])
    assert result.points[0] == before
    assert len({point.point for point in result.points}) == 12  # batch 2, k 2, and greedy, mrs, match
    for point in result.points:
        assert len(point.trials) == (2 if point.batch == 1 else 1)
        assert all(trial.tokens == trial.plain_tokens == 7 * point.batch for trial in point.trials)
        speeds = [trial.tokens / trial.decode_seconds for trial in point.trials]
        assert point.tokens_per_second == pytest.approx(np.median(speeds))
        assert point.speedup == pytest.approx(np.median([t.plain_seconds / t.decode_seconds for t in point.trials]))
        assert point.answer_seconds.median == pytest.approx(np.median([128 * point.batch / s for s in speeds]))
        if sum(point.evaluated_by_position):
            kept_share = sum(point.accepted_by_position) / sum(point.evaluated_by_position)
            assert point.acceptance == pytest.approx(kept_share)
        assert point.fp16_tokens_per_second is None
        assert 0 < point.outside_models < 1
        assert (point.predicted is None) == (point.k == "auto")
        if point.predicted is not None:
            assert 0 < point.predicted < 3 / point.v * 4


def test_points_of_other_settings_are_refused(
    specbench: Specbench, demo_bundles: dict[str, Path], text: str, tmp_path: Path
) -> None:
    work = tmp_path / "work.jsonl"
    work.write_text('{"settings": {"prompts": 3}}\n')
    asked = ["speculate", str(demo_bundles["real"]), "--text", text, *SMALL, "--work"]
    done = specbench(*asked, str(work))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "measured with prompts 3, but this measurement has 2" in done.stderr
    assert work.read_text() == '{"settings": {"prompts": 3}}\n'
    for content, words in (("not JSON\n", "cannot be used"), ("[]\n", "holds no points")):
        work.write_text(content)
        done = specbench(*asked, str(work))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert words in done.stderr


def test_impossible_measurements_are_one_line(
    specbench: Specbench, demo_bundles: dict[str, Path], text: str, tmp_path: Path
) -> None:
    bundle = str(demo_bundles["real"])
    for arguments, words in (
        (["--k", "0"], "got 0, but plain decoding is always measured; leave 0 out"),
        (["--k", "99"], "was compiled for at most"),
        (["--context", "1000", "--new-tokens", "100"], "expected at most 24"),
        (["--context", "800", "--prompts", "9999"], "prompts of 800 tokens take at least"),
        ([bundle], "tell the bundles apart"),
    ):
        done = specbench("speculate", bundle, "--text", text, "--work", str(tmp_path / "w"), *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
        assert words in done.stderr
