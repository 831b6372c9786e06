"""Many texts at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench.batch import bench, measure
from mxspec.evaluate.bench.batch.result import BatchResult

Specbench = Callable[..., Result]


def test_many_texts_are_timed_beside_what_their_calls_allow(
    monkeypatch: pytest.MonkeyPatch, tiny_bundles: dict[str, Path], specbench: Specbench
) -> None:
    for module, name, value in (
        (bench, "CACHED", 24),
        (bench, "TURN", (40, 8)),
        (measure, "KS", (0, 2)),
        (measure, "VOCABULARY", 5000),
    ):
        monkeypatch.setattr(module, name, value)
    options = ("--new-tokens", "8", "--repetitions", "2", "--json")
    result = specbench("batch", str(tiny_bundles["random"]), *options)
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    (sheet,) = BatchResult.model_validate(got).sheets()
    assert len(sheet.rows) == 4
    assert [row["texts"] for row in got["rows"]] == [1, 2, 4, 8]
    for row in got["rows"]:
        assert set(row["tokens_per_second_by_k"]) == {"0", "2", "auto"}
        assert all(len(trials) == 2 for trials in row["trials"]["tokens_per_second_by_k"].values())
        assert 0 < row["outside_models"] < 1
    assert got["rows"][0]["over_one_text"] == 1
    assert got["second_turn"]["seconds"] > 0


def test_a_context_too_short_for_two_turns_is_refused_before_anything_is_timed(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, tiny_bundles: dict[str, Path]
) -> None:
    monkeypatch.setattr(bench, "CACHED", 24)
    result = specbench("batch", str(tiny_bundles["random"]), "--new-tokens", "8")
    assert result.exit_code == 1
    assert "its context is 96 tokens, but timing a second turn takes 1,033" in result.stderr
