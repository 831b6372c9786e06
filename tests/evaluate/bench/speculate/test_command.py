"""`specbench speculate`: the fp16 target beside both ways, questions, and what cannot be measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench import machine
from mxspec.evaluate.bench.speculate.result import SpeculationResult
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.weight_reads import read_bytes
from tests.serve.conftest import with_chat_template

Specbench = Callable[..., Result]


def test_figures_follow_from_trials(
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
    rates = sorted(t.tokens / t.decode_seconds for t in point.trials)
    assert point.tokens_per_second == pytest.approx((rates[1] + rates[2]) / 2)
    assert point.answer_seconds.median == pytest.approx((128 / rates[1] + 128 / rates[2]) / 2)
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
    baseline = str(demo_with_baseline)
    for arguments, message in (
        ([baseline, "--questions", text], "has no chat template; give --text"),
        ([str(demo_bundles["real"]), "--fp16"], "--with-baseline"),
        ([baseline, "--new-tokens", "1000"], "expected at most 960"),
        ([baseline, "--questions", text, "--text", text], "--text: given with --questions"),
        ([baseline, "--questions", text, "--prompts", "2"], "--prompts: given with --questions"),
        ([baseline, "--questions", text, "--context", "2"], "--context: given with --questions"),
        ([baseline, "--questions", str(empty)], "got no questions, expected one a line"),
    ):
        done = specbench("speculate", *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
        assert message in done.stderr
        (tmp_path / "speculate.jsonl").unlink(missing_ok=True)
