"""Beam search with a draft beside beam search without."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from scipy import stats

from mxspec.evaluate.bench.beams.measure import interval
from mxspec.evaluate.bench.beams.result import BeamsResult

Specbench = Callable[..., Result]


def test_searches_are_timed_beside_those_without_a_draft(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--new-tokens", "10", "--prompts", "2", "--beams", "3", "--k", "2", "--k", "auto", "--repetitions", "2")
    result = specbench("beams", str(tiny_bundles["near"]), *options, "--json")
    assert result.exit_code == 0, result.output
    got = BeamsResult.model_validate_json(result.stdout)
    assert len(got.tables()) == 1
    fixed, auto = got.rows
    assert (fixed.k, auto.k, got.beams, got.slots) == ("2", "auto", 3, 8)
    assert len(fixed.trials_speedup) == len(auto.trials_speedup) == 4
    assert fixed.drafting_rounds > 0.8
    assert fixed.kept is not None
    assert 1 <= fixed.steps_per_call <= 3
    assert fixed.low is not None
    assert fixed.high is not None
    assert fixed.low < fixed.speedup < fixed.high
    assert 0 < got.plain_outside_models < 1
    assert json.loads(result.stdout)["prompts"] == 2


def test_the_interval_is_students_on_logarithms() -> None:
    ratios = [0.9, 1.1, 1.05, 1.2, 0.97, 1.01, 1.0, 0.99, 1.04, 1.15]
    logs = [math.log(ratio) for ratio in ratios]
    expected = stats.t.interval(0.95, len(logs) - 1, stats.tmean(logs), stats.sem(logs))
    assert interval(ratios) == pytest.approx([math.exp(end) for end in expected], rel=1e-4)
    assert interval([1.0]) == (None, None)


def test_what_cannot_be_measured_is_one_line(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    for options, says in (
        (("--new-tokens", "90"), "--new-tokens: got 90 after prompts of 64"),
        (("--new-tokens", "8", "--beams", "9"), "beams: got 9, expected at most 8"),
    ):
        result = specbench("beams", str(tiny_bundles["near"]), *options)
        assert result.exit_code == 1
        assert says in result.stderr
