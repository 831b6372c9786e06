"""`specbench columns`: its figures follow from its trials, and what it cannot measure is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mxspec.evaluate.bench import read_ceiling
from mxspec.evaluate.bench.cli import main
from mxspec.evaluate.bench.columns.result import ColumnsResult
from mxspec.evaluate.bench.energy import EnergyMeter
from mxspec.runtime.engine import Engine
from tests.serve.conftest import with_chat_template


def columns(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["columns", *map(str, arguments)])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_text("def read_lines(path):\n    with open(path) as file:\n        return file.readlines()\n" * 40)
    return path


def test_figures_follow_from_trials(demo_with_baseline: Path, text: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    small = ["--prompts", "2", "--new-tokens", "12", "--repetitions", "2", "--k", "3"]
    done = columns(demo_with_baseline, "--text", text, *small, "--record", record)
    assert done.exit_code == 0, done.output
    result = ColumnsResult.model_validate(json.loads(record.read_text())["result"])
    fp16, plain, speculating = result.columns
    assert (fp16.column, plain.column) == ("fp16", "mxfp6_e2m3")
    assert result.same_texts == 4
    for column in result.columns:
        assert [(t.repetition, t.prompt) for t in column.trials] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert all(t.tokens == 11 for t in column.trials)
        rates = sorted(t.tokens / t.decode_seconds for t in column.trials)
        assert column.tokens_per_second == pytest.approx((rates[1] + rates[2]) / 2)
        assert column.answer_seconds.median == pytest.approx((128 / rates[1] + 128 / rates[2]) / 2)
        assert all(t.read_bytes == t.rounds * fp16.weights_bytes for t in fp16.trials)
    assert fp16.over_first == 1
    assert fp16.weights_bytes / plain.weights_bytes == pytest.approx(16 / 6.25)
    assert (plain.acceptance, plain.tokens_per_round) == (None, 1)
    assert speculating.acceptance is not None
    assert speculating.tokens_per_round > 1
    assert all(t.rounds + t.accepted >= t.tokens for t in speculating.trials)


def test_questions_are_asked_as_the_template_has_them(demo_with_baseline: Path, tmp_path: Path) -> None:
    bundle = with_chat_template(demo_with_baseline, tmp_path / "chat.bundle")
    questions, record = tmp_path / "questions.txt", tmp_path / "record.json"
    questions.write_text("Where is it?\n\nWhen was it?\n")
    with Engine(bundle) as engine:
        expected = [
            engine.generate(messages=[{"role": "user", "content": each}], max_new_tokens=8, min_new_tokens=2).result()
            for each in ("Where is it?", "When was it?")
        ]
    asked = columns(bundle, "--questions", questions, "--new-tokens", "8", "--repetitions", "1", "--record", record)
    assert asked.exit_code == 0, asked.output
    result = ColumnsResult.model_validate(json.loads(record.read_text())["result"])
    assert result.same_texts == result.prompts == 2
    for column in result.columns[1:]:
        assert [trial.tokens + 1 for trial in column.trials] == [len(answer.token_ids) for answer in expected]


def test_impossible_measurements_are_refused(
    demo_bundles: dict[str, Path],
    demo_with_baseline: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ceiling, "PASSES", 1)
    empty = text.with_name("empty.txt")
    empty.write_text("\n")
    chat = with_chat_template(demo_with_baseline, tmp_path / "chat.bundle")
    done = columns(demo_with_baseline, "--questions", text)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "has no chat template; give --text" in done.stderr
    for arguments, message in (
        ([demo_bundles["real"]], "--with-baseline"),
        ([demo_with_baseline, "--new-tokens", "1000"], "expected at most 960"),
        ([demo_with_baseline, "--verifier", "mrs"], "--verifier: given at temperature 0"),
    ):
        done = columns(*arguments, "--text", text)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert message in done.stderr

    for options, message in (
        ([], "either --text or --questions"),
        (["--questions", text, "--text", text], "either --text or --questions"),
        (["--questions", text, "--prompts", "2"], "--prompts: given with --questions"),
        (["--questions", empty], "got no questions, expected one a line"),
    ):
        done = columns(chat, *options)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert message in done.stderr


def test_energy_of_all_packages_is_added_up_across_the_end_of_a_counter(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).joules() is None
    for number, joules in enumerate((5_000_000, 9_000_000)):
        package = tmp_path / f"intel-rapl:{number}"
        package.mkdir()
        (package / "energy_uj").write_text(f"{joules}\n")
        (package / "max_energy_range_uj").write_text("10000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the first
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("7000000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("1500000\n")  # past its range
    assert meter.joules() == pytest.approx(2 + 2.5)
