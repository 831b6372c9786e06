"""`specbench speculate`: figures that follow from trials, work that is not done twice, and what cannot be measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from mxspec.evaluate.bench import machine
from mxspec.evaluate.bench.speculate.result import SpeculationPoint, SpeculationResult
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.weight_reads import read_bytes
from tests.serve.conftest import with_chat_template

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


def test_the_fp16_target_and_a_plain_read_stand_beside_both_ways(
    specbench: Specbench, demo_with_baseline: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = tmp_path / "record.json"
    small = ["--prompts", "2", "--new-tokens", "12", "--repetitions", "2", "--k", "3", "--fp16"]
    done = specbench("speculate", str(demo_with_baseline), "--text", text, *small, "--record", str(record))
    assert done.exit_code == 0, done.output
    (point,) = SpeculationResult.model_validate(json.loads(record.read_text())["result"]).points
    assert [(t.repetition, t.prompt) for t in point.trials] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(t.tokens == t.plain_tokens == t.fp16_tokens == 11 for t in point.trials)
    over = sorted(t.tokens_per_second / (t.fp16_tokens or 0) * (t.fp16_seconds or 0) for t in point.trials)
    assert point.over_fp16 == pytest.approx((over[1] + over[2]) / 2)
    assert point.acceptance > 0
    assert point.tokens_per_round > 1
    with Engine(demo_with_baseline) as engine:
        assert engine.draft is not None
        target, draft = read_bytes(engine.target.entry), read_bytes(engine.draft.entry)
    for t in point.trials:
        rounds = (t.read_bytes - 0) / (target + point.drafted_per_round * draft)
        assert 11 / 4 <= rounds <= 11 * 1.5
        assert t.share_of_read == pytest.approx(t.read_bytes / t.decode_seconds / t.read_bytes_per_second)


def test_questions_are_asked_as_the_template_has_them(
    specbench: Specbench, demo_with_baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = with_chat_template(demo_with_baseline, tmp_path / "chat.bundle")
    questions, record = tmp_path / "questions.txt", tmp_path / "record.json"
    questions.write_text("Where is it?\n\nWhen was it?\n")
    with Engine(bundle) as engine:
        expected = [
            engine.generate(messages=[{"role": "user", "content": each}], max_new_tokens=8, min_new_tokens=2).result()
            for each in ("Where is it?", "When was it?")
        ]
    small = ("--new-tokens", "8", "--repetitions", "1", "--k", "2", "--record", str(record))
    asked = specbench("speculate", str(bundle), "--questions", str(questions), *small)
    assert asked.exit_code == 0, asked.output
    result = SpeculationResult.model_validate(json.loads(record.read_text())["result"])
    assert result.prompts == 2
    (point,) = result.points
    assert point.context == 0
    assert [trial.tokens + 1 for trial in point.trials] == [len(answer.token_ids) for answer in expected]


def test_impossible_measurements_are_refused(
    specbench: Specbench,
    demo_bundles: dict[str, Path],
    demo_with_baseline: Path,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "PASSES", 1)
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    baseline, real = str(demo_with_baseline), str(demo_bundles["real"])
    for arguments, message in (
        ([baseline, "--questions", text], "has no chat template; give --text"),
        ([real, "--fp16"], "--with-baseline"),
        ([real, "--k", "0"], "got 0, but plain decoding is always measured; leave 0 out"),
        ([real, "--k", "99"], "was compiled for at most"),
        ([real, "--text", text, "--context", "1000", "--new-tokens", "100"], "expected at most 24"),
        ([real, "--text", text, "--context", "800", "--prompts", "9999"], "prompts of 800 tokens take at least"),
        ([real, real], "tell the bundles apart"),
        ([baseline, "--new-tokens", "1000"], "expected at most 960"),
        ([baseline, "--new-tokens", "1000"], "--new-tokens: got 1,000 after prompts of 64 tokens, but the context of "),
        ([baseline, "--questions", text, "--text", text], "--text: given with --questions"),
        ([baseline, "--questions", text, "--prompts", "2"], "--prompts: given with --questions"),
        ([baseline, "--questions", text, "--context", "2"], "--context: given with --questions"),
        ([baseline, "--questions", str(empty)], "got no questions, expected one a line"),
    ):
        done = specbench("speculate", *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
        assert message in done.stderr
        (tmp_path / "speculate.jsonl").unlink(missing_ok=True)
