"""Speculation beside plain decoding: acceptance, costs and the formula hang together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench.speculate.measure import formula
from mxspec.evaluate.bench.speculate.result import SpeculateResult

Specbench = Callable[..., Result]


def test_speculation_is_compared_with_the_formula(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--prompts=2", "--new-tokens=12", "--repetitions=1", "--drafter=model", "--drafter=random")
    result = specbench("speculate", str(tiny_bundles["near"]), *options, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(SpeculateResult.model_validate(report).drafters) == {"model", "random"}
    found = report["drafters"]["model"]
    rows = found["rows"]
    assert [row["k"] for row in rows] == list(range(1, 9))
    assert 0 <= found["auto"]["drafted_per_round"] <= 8
    assert len(found["auto"]["trials_speedup"]) == 2
    assert max(row["acceptance"] for row in report["drafters"]["random"]["rows"]) < 0.5
    for row in rows:
        assert row["predicted"] == pytest.approx(formula(row["acceptance"], row["k"], row["c"], row["v"]))
        assert 1 <= row["tokens_per_round"] <= row["k"] + 1
        assert 0 < row["answer_seconds"]["median"] <= row["answer_seconds"]["p90"]


def test_alternating_steps_are_compared_with_steps_alone(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--prompts", "1", "--new-tokens", "8", "--repetitions", "3")
    result = specbench("speculate", str(tiny_bundles["near"]), *options, "--json")
    assert result.exit_code == 0, result.output
    turns = json.loads(result.stdout)["turns"]
    assert len(turns["trials"]) == 3
    ratios = []
    for trial in turns["trials"]:
        assert set(trial) == {"alone_seconds", "turns_seconds"}
        assert all(set(seconds) == {"target", "draft"} for seconds in trial.values())
        ratios.append(sum(trial["turns_seconds"].values()) / sum(trial["alone_seconds"].values()))
    assert turns["over_alone"] == pytest.approx(statistics.median(ratios))
    for name in ("target", "draft"):
        over = [trial["turns_seconds"][name] / trial["alone_seconds"][name] for trial in turns["trials"]]
        assert turns[f"{name}_over_alone"] == pytest.approx(statistics.median(over))
        seconds = statistics.median(trial["turns_seconds"][name] for trial in turns["trials"])
        assert turns[f"{name}_seconds"] == seconds > 0


def test_an_imposed_acceptance_is_what_comes_out(tiny_bundles: dict[str, Path], specbench: Specbench) -> None:
    options = ("--prompts", "4", "--new-tokens", "24", "--repetitions", "1", "--acceptance")
    for imposed in (0.0, 1.0):
        result = specbench("speculate", str(tiny_bundles["random"]), *options, str(imposed), "--json")
        assert result.exit_code == 0, result.output
        assert {row["acceptance"] for row in json.loads(result.stdout)["drafters"]["model"]["rows"]} == {imposed}


def test_the_formula_at_its_ends() -> None:
    assert formula(0.0, 4, 0.1, 1.2) == pytest.approx(1 / 1.6)  # every round emits one token
    assert formula(1.0, 4, 0.1, 1.2) == pytest.approx(5 / 1.6)  # every round emits K + 1
    assert formula(0.5, 1, 0.0, 1.0) == pytest.approx(1.5)


@pytest.mark.parametrize(("command", "prompt"), [("speculate", 64), ("batch", 128)])
def test_more_new_tokens_than_the_context_holds_are_one_line(
    specbench: Specbench, tiny_bundles: dict[str, Path], command: str, prompt: int
) -> None:
    result = specbench(command, str(tiny_bundles["near"]), "--new-tokens", "33")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"--new-tokens: got 33 after prompts of {prompt} tokens, but the context of the bundle's" in result.stderr
