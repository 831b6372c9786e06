"""compare: what moved is found in any result, noise is not taken for a move, and differences are said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from scipy import stats

from bench.compare.figures import Series, figures_of, settings_of
from bench.compare.judge import move_of
from bench.documents.kinds import KINDS
from mxspec.evaluate.record import result_of
from mxspec.evaluate.significance import holm_corrected

Laboratory = Callable[..., Result]
RECORDS = Path(__file__).resolve().parents[3] / "bench" / "records"
OPS = RECORDS / "avx512vbmi" / "ops.json"


def record(path: Path, change: Callable[[dict[str, Any]], object] = lambda found: None) -> str:
    found = json.loads(OPS.read_text())
    change(found)
    path.write_text(json.dumps(found))
    return str(path)


def slow_down(found: dict[str, Any], factor: float) -> None:
    """One product, in each of its trials."""
    product = found["result"]["products"][0]
    product["seconds"] *= factor
    product["trials_seconds"] = [seconds * factor for seconds in product["trials_seconds"]]


def test_one_figure_that_moved_is_found_and_nothing_else(laboratory: Laboratory, tmp_path: Path) -> None:
    old = record(tmp_path / "old.json")
    new = record(tmp_path / "new.json", lambda found: slow_down(found, 1.5))
    done = laboratory("compare", old, new, "--json")
    figures = {figure["figure"]: figure for figure in json.loads(done.stdout)["figures"]}
    first = json.loads(OPS.read_text())["result"]["products"][0]
    moved = [figure for figure in figures.values() if figure["verdict"] in ("slower", "faster", "changed")]
    assert [figure["verdict"] for figure in moved] == ["slower"]
    assert f"{first['isa']}, {first['format']}, {first['activations']}, rows 1].seconds" in moved[0]["figure"]
    assert moved[0]["ratio"] == pytest.approx(1.5)
    assert moved[0]["interval"][0] < 1.5 < moved[0]["interval"][1]
    assert done.exit_code == 2
    assert "1 of" in done.stderr
    back = laboratory("compare", new, old, "--json")
    assert back.exit_code == 0
    assert [f["verdict"] for f in json.loads(back.stdout)["figures"]].count("faster") == 1


def test_small_moves_and_equal_records_are_noise(laboratory: Laboratory, tmp_path: Path) -> None:
    old = record(tmp_path / "old.json")
    for factor, more in ((1.0, []), (1.5, ["--least-move", "0.6"])):
        new = record(tmp_path / "new.json", lambda found, factor=factor: slow_down(found, factor))  # type: ignore[misc]
        done = laboratory("compare", old, new, *more)
        assert done.exit_code == 0, done.output
        assert "within noise" in done.output


def test_other_machines_threads_and_shapes_are_reported(laboratory: Laboratory, tmp_path: Path) -> None:
    def elsewhere(found: dict[str, Any]) -> None:
        found["machine"]["cpu"] = "another"
        found["result"]["threads"] = 7
        found["result"]["read_bytes_per_second"] *= 2
        found["result"]["products"][0]["rows"] = 77

    done = laboratory("compare", record(tmp_path / "old.json"), record(tmp_path / "new.json", elsewhere), "--json")
    told = "\n".join(json.loads(done.stdout)["warnings"])
    for words in ("cpu was AMD EPYC, is another", "threads was 2, is 7", "only in the old record", "only in the new"):
        assert words in told
    assert "a plain read gave" in told


def test_records_that_cannot_be_compared_are_one_line(laboratory: Laboratory, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "no.json").write_text("no")
    comparison = {"old": "a", "new": "b", "warnings": [], "figures": []}
    another = record(tmp_path / "another.json", lambda found: found.update(kind="compare", result=comparison))
    unknown = record(tmp_path / "unknown.json", lambda found: found.update(kind="figure"))
    for other, words in (
        (tmp_path / "other.json", "is not a record"),
        (tmp_path / "no.json", "cannot be read as a record"),
        (tmp_path / "none.json", "cannot be read as a record"),
        (Path(unknown), "measure again with"),
        (another, "expected two of one"),
    ):
        done = laboratory("compare", str(OPS), str(other))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert words in done.stderr


def test_trials_of_columns_and_of_texts_are_found_beside_their_figures() -> None:
    trial = {"prompt": 0, "repetition": 0, "first_token_seconds": 0.5, "decode_seconds": 2.0, "tokens": 10}
    trial |= {"rounds": 5, "drafted": 8, "evaluated": 7, "accepted": 5, "read_bytes": 100, "joules": None}
    percentiles = {"median": 0.5, "p90": 0.6, "p99": 0.7}
    column = dict.fromkeys(("first_token_seconds", "token_seconds", "answer_seconds"), percentiles)
    column |= dict.fromkeys(("tokens_per_second", "over_first", "tokens_per_round", "share_of_read"), 1.0)
    column |= {"column": "fp16", "weights_bytes": 10, "acceptance": None, "bytes_per_second": 1.0}
    column |= {"joules_per_token": None, "trials": [trial, trial | {"prompt": 1, "decode_seconds": 4.0}]}
    result = {"bundle": "b", "threads": 2, "prompts": 2, "new_tokens": 11, "temperature": 0.8, "k": "auto"}
    result |= {"drafter": "model", "verifier": "mrs", "read_bytes_per_second": 1e9, "anonymous_bytes": 1}
    found = result_of("columns", result | {"same_texts": 2, "columns": [column]}, KINDS)
    assert found is not None
    figures = figures_of(found)
    speed = figures["columns[fp16].tokens_per_second"]
    assert speed.trials == Series((5.0, 2.5), ((0, 0), (1, 0)))
    assert speed.faster_if_more
    assert figures["columns[fp16].first_token_seconds.median"].trials is not None
    assert figures["columns[fp16].first_token_seconds.p90"].trials is None
    assert not figures["columns[fp16].first_token_seconds.median"].faster_if_more
    assert settings_of(found)["temperature"] == 0.8
    assert "temperature" not in figures


def test_the_test_of_trials_is_welchs_and_students() -> None:
    rng = np.random.default_rng(0)
    old, new = np.exp(rng.normal(0, 0.1, 6)), np.exp(rng.normal(0.2, 0.3, 4))
    move = move_of(Series(tuple(old)), Series(tuple(new)))
    theirs = stats.ttest_ind(np.log(new), np.log(old), equal_var=False)
    assert move is not None
    assert move.p == pytest.approx(theirs.pvalue)
    low, high = theirs.confidence_interval()
    assert move.interval == pytest.approx((np.exp(low), np.exp(high)))
    keys = ((0, 0), (0, 1), (1, 0), (1, 1))
    paired = move_of(Series(tuple(old[:4]), keys), Series(tuple(new[::-1]), keys[::-1]))
    assert paired is not None
    assert paired.p == pytest.approx(stats.ttest_rel(np.log(new), np.log(old[:4])).pvalue)
    assert move_of(Series((1.0, 2.0)), Series((1.0, 2.0, 3.0))) is None
    assert move_of(Series((1.0, 0.0, 2.0)), Series((1.0, 2.0, 3.0))) is None


def test_moves_by_chance_are_as_rare_as_is_said() -> None:
    """40 records of 30 figures without a move, 5 trials each: at most 5 % of records show one (6 of 40: p < 0.02)."""
    rng = np.random.default_rng(1)

    def some_move() -> bool:
        pairs = [move_of(*(Series(tuple(np.exp(rng.normal(0, 0.1, 5)))) for _ in range(2))) for _ in range(30)]
        return min(holm_corrected([pair.p for pair in pairs if pair is not None])) < 0.05

    assert sum(some_move() for _ in range(40)) <= 5
