"""`speccheck lossless` on an engine that is right, and its parts against what they claim."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy import stats

from mxspec.evaluate.lossless.drafters import RehearsedDrafter
from mxspec.evaluate.lossless.effort import EFFORTS, Effort
from mxspec.evaluate.lossless.evidence import FAULTS, Evidence
from mxspec.evaluate.lossless.result import Equality
from mxspec.evaluate.speccheck import main

SMALL = Effort(5, equal_tokens=16, sampled_tokens=120)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", SMALL)


def lossless(bundle: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["lossless", str(bundle), "--effort", "quick", *options])


@pytest.mark.usefixtures("small")
def test_a_right_engine_passes_and_all_is_said(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    result = lossless(tiny_bundles["near"], "--json", "--record", str(record))
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert json.loads(record.read_text())["result"] == got
    assert (got["passed"], got["effort"], got["false_alarm"]) == (True, "quick", 1e-3)
    compared = {entry["name"]: entry["compared"] for entry in got["equalities"]}
    assert compared["rows of the target"] > 100
    assert compared["rows of the draft"] > 100
    assert min(compared[name] for name in compared if "text" in name) >= 8
    assert all(entry["passed"] and 0 <= entry["p_value"] <= 1 for entry in got["tests"])
    assert {entry["fault"] for entry in got["power"]} == set(FAULTS)
    assert len(got["tests"]) >= 25


@pytest.mark.usefixtures("small")
def test_the_report_is_in_words(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a text of the user's own, of which prompts are cut. " * 4)
    result = lossless(tiny_bundles["random"], "--text", str(text), "--only", "rows", "--only", "sampling")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    for words in ("sampled text, mrs", "this run would have shown", "always accepted"):
        assert words in said
    # Texts that were compared or sampled with this pair's models, and nothing else.
    headline = re.search(r"Lossless as far as ([\d,]+) rows, ([\d,]+) texts, ([\d,]+) tokens of this pair and", said)
    assert headline is not None, said
    rows, texts, tokens = (int(count.replace(",", "")) for count in headline.groups())
    assert rows > 100
    assert texts < tokens < 14 * 4 * SMALL.sampled_tokens
    assert "greedy text" not in result.stderr


def test_a_text_that_is_too_short_is_one_line(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("short")
    result = lossless(tiny_bundles["near"], "--text", str(text))
    assert result.exit_code == 1
    assert "--text: got 5 tokens, expected at least 24" in result.stderr


def test_without_scipy_one_line_says_what_is_missing(
    tiny_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    result = lossless(tiny_bundles["near"])
    assert result.exit_code == 1
    assert result.stderr == "error: testing distributions needs scipy: pip install 'mxspec[evaluate]'\n"


def test_the_commands_load_neither_torch_nor_scipy() -> None:
    code = (
        "import sys, mxspec.evaluate.speccheck; "
        "print([name for name in ('torch', 'transformers', 'onnx', 'scipy', 'mxspec.compile') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the parts ---


def rows(vocab: int, seed: int, spread: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal(vocab))
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return found


def evidence(seed: int, fault: str | None, tokens: int) -> Evidence:
    """Of a text whose tokens are drawn from the target, or from what a fault makes of it."""
    rng = np.random.default_rng(seed)
    found = Evidence("text", Equality(name="possible", unit="tokens"))
    found.begin()
    for place in range(tokens):
        target = rows(12, 1000 * (place % 50) + 1, 1.5)
        draft = 0.5 * target + 0.5 * rows(12, 1000 * (place % 50) + 2, 1.5)
        written = target if fault is None else FAULTS[fault](target, draft)
        token = int(rng.choice(12, p=written / written.sum()))
        assert found.add(token, target, draft, drafted=True, uniform=float(rng.random()))
    return found


def test_p_values_of_right_texts_are_uniform() -> None:
    found = [[chance.p_value for chance in evidence(seed, None, 120).chances()] for seed in range(100)]
    for values in zip(*found, strict=True):
        assert stats.kstest(values, "uniform").pvalue > 1e-4


def test_power_is_how_often_a_fault_shows() -> None:
    level, tokens, runs = 0.01, 100, 80
    promised = {power.fault: power for power in evidence(0, None, tokens).powers(level)}
    for fault in ("lenience 0.5", "residual from the target"):
        shown = sum(evidence(seed, fault, tokens).chances()[0].p_value <= level for seed in range(runs)) / runs
        assert shown == pytest.approx(promised[fault].probability, abs=0.17)  # four standard errors
    assert 0.2 < promised["lenience 0.5"].probability < promised["always accepted"].probability


def test_a_token_that_the_target_cannot_write_is_a_difference() -> None:
    found = Evidence("text", Equality(name="possible", unit="tokens"))
    found.begin()
    assert not found.add(1, np.array([1.0, 0.0]), np.array([0.5, 0.5]), drafted=True, uniform=0.5)
    assert found.possible.detail == "token 1 after 0 others of text has no probability"


def test_the_rehearsed_drafter_errs_now_and_then() -> None:
    text = list(range(40))
    drafter = RehearsedDrafter([text], 100)
    guessed = [drafter._next(text[:i]) for i in range(1, 40)]
    right = [guess == i for i, guess in enumerate(guessed, 1)]
    assert 0.5 < sum(right) / len(right) < 1
    assert drafter._next([50]) is None
    assert drafter._next(text) is None
