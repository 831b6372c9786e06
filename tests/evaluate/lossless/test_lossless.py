"""`speccheck lossless` on an engine that is right, and its parts against what they claim."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy import stats

from mxspec.evaluate.lossless import exact
from mxspec.evaluate.lossless.effort import EFFORTS, Effort
from mxspec.evaluate.lossless.enumeration import compare_counts
from mxspec.evaluate.lossless.evidence import FAULTS, Evidence
from mxspec.evaluate.lossless.finding import Equality
from mxspec.evaluate.lossless.rehearsed import RehearsedDrafter
from mxspec.evaluate.lossless.table import ORDER, WORDS, Table, TableSession, score_tables
from mxspec.evaluate.speccheck import main
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.session import Part
from mxspec.runtime.sampling.settings import Sampling

SMALL = Effort(5, equal_tokens=16, sampled_tokens=120, sequences=900)


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
    for words in ("Lossless as far as", "sampled text, mrs", "this run would have shown", "always accepted"):
        assert words in " ".join(result.stderr.split())
    assert "greedy text" not in result.stderr


def test_a_text_that_is_too_short_is_one_line(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("short")
    result = lossless(tiny_bundles["near"], "--text", str(text))
    assert result.exit_code == 1
    assert "--text: got 5 tokens, expected at least 24" in result.stderr


def test_the_command_needs_neither_torch_nor_scipy() -> None:
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
    found = Evidence("text", Equality("possible", "tokens"))
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
    found = Evidence("text", Equality("possible", "tokens"))
    found.begin()
    assert not found.add(1, np.array([1.0, 0.0]), np.array([0.5, 0.5]), drafted=True, uniform=0.5)
    assert found.possible.detail == "token 1 after 0 others of text has no probability"


def test_tables_are_the_logits_of_whole_texts(tiny_bundles: dict[str, Path]) -> None:
    with Engine(tiny_bundles["near"], slots=1) as engine:
        prompt = [5, 6, 7]
        from mxspec.evaluate.lossless.table import choose_words

        words = choose_words(engine, prompt)
        tables = score_tables(engine, prompt)
        for text in ([], [3], [2, 7], [7, 7]):
            for model in ("target", "draft"):
                ids = [*prompt, *(words[word] for word in text)]
                last = list(engine.score(ids, model=model))[-1][-1]  # type: ignore[arg-type]
                np.testing.assert_array_equal(tables[model].after(text), last[words])  # type: ignore[index]
        np.testing.assert_array_equal(tables["target"].after([1, 2, 7]), tables["target"].after([2, 7]))


def random_table() -> Table:
    count = sum(WORDS**length for length in range(ORDER + 1))
    return Table(np.random.default_rng(2).standard_normal((count, WORDS)).astype(np.float32))


def test_texts_of_a_table_have_probabilities_that_add_up() -> None:
    table = random_table()
    bias = dict.fromkeys(range(2, WORDS), -np.inf)
    found = exact.text_probabilities(table, Sampling(0.7, logit_bias=bias), 3)
    assert found.sum() == pytest.approx(1)
    for number, text in enumerate(itertools.product(range(WORDS), repeat=3)):
        assert (found[number] > 0) == (max(text) < 2)
    first = np.exp((table.after([])[:2] - table.after([])[:2].max()).astype(np.float64) / 0.7)
    assert found.reshape(WORDS, -1).sum(axis=1)[:2] == pytest.approx(first / first.sum())


def test_a_table_refuses_entries_that_nobody_wrote() -> None:
    session = TableSession(random_table(), capacity=8, slots=2)
    session.run([Part(0, 0, [0, 1, 4], 1)])
    np.testing.assert_array_equal(session.run([Part(0, 3, [5], 1)])[0], session._table.after([4, 5]))
    with pytest.raises(AssertionError, match="nobody wrote"):
        session.run([Part(1, 3, [5], 1)])


def test_counts_are_compared_with_what_was_expected() -> None:
    rng = np.random.default_rng(3)
    chances = rng.dirichlet([0.4] * 300)
    found = [compare_counts(rng.multinomial(2000, chances).astype(float), 2000 * chances)[0] for _ in range(300)]
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    wrong = 0.8 * chances + 0.2 * rng.permutation(chances)
    assert compare_counts(rng.multinomial(2000, wrong).astype(float), 2000 * chances)[0] < 1e-6


def test_the_rehearsed_drafter_errs_now_and_then() -> None:
    text = list(range(40))
    drafter = RehearsedDrafter([text], 100)
    guessed = [drafter._next(text[:i]) for i in range(1, 40)]
    right = [guess == i for i, guess in enumerate(guessed, 1)]
    assert 0.5 < sum(right) / len(right) < 1
    assert drafter._next([50]) is None
    assert drafter._next(text) is None
