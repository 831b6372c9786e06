"""specbench through click's runner: what is measured is there and hangs together. How fast it is, no test asks."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from mxspec.evaluate.bench import batch, model, read_ceiling
from mxspec.evaluate.bench import ops as ops_bench
from mxspec.evaluate.bench.cli import main
from mxspec.evaluate.bench.speculate import formula
from mxspec.formats.bundle import Bundle
from mxspec.formats.manifest import ModelName
from mxspec.runtime import ops
from mxspec.runtime.ops.timing import read_loops
from mxspec.runtime.reader import Reader
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.session import Session


def specbench(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_bench, "BEYOND_CACHES", 1 << 16)
    monkeypatch.setattr(ops_bench, "SHAPE", (64, 96))
    monkeypatch.setattr(ops_bench, "CACHED", (4, 32))
    monkeypatch.setattr(ops_bench, "PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(model, "CALL_SECONDS", 0.0)
    monkeypatch.setattr(model, "CACHED", (8, 64))


def in_the_middle_half(row: dict[str, Any], *names: tuple[str, str]) -> bool:
    return all(row[quartiles][0] <= row[name] <= row[quartiles][1] for name, quartiles in names)


def test_products_are_timed_on_every_instruction_set(tmp_path: Path) -> None:
    record = tmp_path / "ops.json"
    result = specbench("ops", "--rows", "1", "--rows", "3", "--repetitions", "2", "--json", "--record", str(record))
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert {p["format"] for p in got["products"]} == set(ops_bench.FORMATS)
    assert {p["isa"] for p in got["products"]} == set(ops.available_isas())
    for p in got["products"]:
        assert len(p["trials_seconds"]) == len(p["trials_share_of_read"]) == 2
        assert in_the_middle_half(p, ("seconds", "seconds_quartiles"), ("share_of_read", "share_quartiles"))
    assert {(a["rows"], a["cached"]) for a in got["attention"]} == {(m, c) for m in (1, 8) for c in (4, 32)}
    for a in got["attention"]:
        assert in_the_middle_half(a, ("seconds", "seconds_quartiles"), ("over_read", "over_read_quartiles"))
    assert got["threads"] == ops.threads()
    assert set(got["read_loops"].values()) <= set(read_loops())
    assert json.loads(record.read_text())["result"] == got


def test_a_machine_that_changes_its_speed_changes_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four repetitions the last three run at a tenth of the speed, reads and products alike."""
    slower = iter([1.0] * 2 + [0.1] * 6)  # two products a repetition

    def product(*_: Any, **__: Any) -> NDArray[np.float64]:
        now[0] = next(slower)
        return np.array([2.0 / now[0]])

    now = [1.0]
    monkeypatch.setattr(ops_bench, "time_matmul", product)
    monkeypatch.setattr(read_ceiling, "time_read", lambda *_: (np.array([1.5 / now[0]]), 0))
    monkeypatch.setattr(ops_bench, "BEYOND_CACHES", 8000)  # two matrices
    monkeypatch.setattr(ops_bench, "measure_attention", lambda *_: [])
    result = ops_bench.measure(("avx2",), ("mxfp6_e3m2",), rows=(1,), repetitions=4)
    (found,) = result["products"]
    assert found["share_quartiles"] == pytest.approx([0.75, 0.75])
    assert found["trials_seconds"] == pytest.approx([2, 20, 20, 20])


def test_tables_show_spread_and_kind_of_activations(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isa = ops.available_isas()[-1]
    record = tmp_path / isa / "ops.json"
    options = ("--isa", isa, "--rows", "1", "--format", "fp16_tiles", "--format", "mxfp6_e2m3", "--repetitions", "2")
    result = specbench("ops", *options, "--record", str(record))
    assert result.exit_code == 0, result.output
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.ops(isa).splitlines()[2:5]]
    assert [line[:2] for line in lines] == [
        ["fp16_tiles", "float32"],
        ["mxfp6_e2m3", "int16"],
        ["mxfp6_e2m3", "int8"],
    ]
    assert all(re.fullmatch(r"\d+ ± \d+ \(\d+%\)", line[2]) for line in lines)
    attention = tables.attention(isa)
    assert re.search(r"\| 8 after 32 cached \| \d+ ± \d+ \| \d+\.\d\d ± \d+\.\d\d \|", attention)


def test_a_model_is_timed_at_every_size_that_fits(tiny_bundles: dict[str, Path]) -> None:
    result = specbench("model", str(tiny_bundles["near"]), "--repetitions", "1", "--json")
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert [(c["tokens"], c["cached"]) for c in got["calls"]] == [
        (tokens, cached) for cached in (8, 64) for tokens in (1, 2, 4, 8, 16)
    ]
    assert got["weight_bytes"] < got["weights_file_bytes"]
    for call in got["calls"]:
        assert in_the_middle_half(call, ("seconds", "seconds_quartiles"), ("share_of_read", "share_quartiles"))


def test_speculation_is_compared_with_the_formula(tiny_bundles: dict[str, Path]) -> None:
    options = ("--prompts=2", "--new-tokens=12", "--repetitions=1", "--drafter=model", "--drafter=random")
    result = specbench("speculate", str(tiny_bundles["near"]), *options, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
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


def test_steps_in_turns_are_compared_with_steps_alone(tiny_bundles: dict[str, Path]) -> None:
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


def test_the_models_take_turns_call_by_call(monkeypatch: pytest.MonkeyPatch, tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    names: tuple[ModelName, ...] = ("target", "draft")
    sessions = [Session.of(bundle, name, 1) for name in names]
    benches = [model.CallBench(Reader(session)) for session in sessions]
    calls: list[tuple[str, int, int]] = []
    forward = Reader.forward

    def watched(reader: Reader, tokens: Sequence[int], rows: int) -> Logits:
        calls.append((names[sessions.index(reader.session)], len(tokens), reader.length))
        return forward(reader, tokens, rows)

    for bench in benches:
        bench.fill(20)
    monkeypatch.setattr(Reader, "forward", watched)
    assert model.seconds_in_turns(benches, 1, 20).shape == (3, 2)
    assert calls == [("target", 1, 20), ("draft", 1, 20)] * 3
    monkeypatch.setattr(model, "CALL_SECONDS", 10.0)
    assert model.seconds_in_turns(benches, 2, 20, most=4).shape == (4, 2)


def test_an_imposed_acceptance_is_what_comes_out(tiny_bundles: dict[str, Path]) -> None:
    options = ("--prompts", "4", "--new-tokens", "24", "--repetitions", "1", "--acceptance")
    for imposed in (0.0, 1.0):
        result = specbench("speculate", str(tiny_bundles["random"]), *options, str(imposed), "--json")
        assert result.exit_code == 0, result.output
        assert {row["acceptance"] for row in json.loads(result.stdout)["drafters"]["model"]["rows"]} == {imposed}


def test_many_texts_are_timed_beside_what_their_calls_allow(
    monkeypatch: pytest.MonkeyPatch, tiny_bundles: dict[str, Path]
) -> None:
    for name, value in (("CACHED", 24), ("TURN", (40, 8)), ("KS", (0, 2)), ("VOCABULARY", 5000)):
        monkeypatch.setattr(batch, name, value)
    options = ("--new-tokens", "8", "--repetitions", "2", "--json")
    result = specbench("batch", str(tiny_bundles["random"]), *options)
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert [row["texts"] for row in got["rows"]] == [1, 2, 4, 8]
    for row in got["rows"]:
        assert set(row["tokens_per_second_by_k"]) == {"0", "2", "auto"}
        assert all(len(trials) == 2 for trials in row["trials"]["by_k"].values())
        assert 0 < row["outside_models"] < 1
    assert got["rows"][0]["over_one_text"] == 1
    assert got["second_turn"]["seconds"] > 0


def test_the_formula_at_its_ends() -> None:
    assert formula(0.0, 4, 0.1, 1.2) == pytest.approx(1 / 1.6)  # every round emits one token
    assert formula(1.0, 4, 0.1, 1.2) == pytest.approx(5 / 1.6)  # every round emits K + 1
    assert formula(0.5, 1, 0.0, 1.0) == pytest.approx(1.5)


def test_a_bundle_or_a_shape_but_not_both() -> None:
    result = specbench("model")
    assert result.exit_code == 1
    assert result.stderr == "error: expected either BUNDLE or --shape\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shape", "tinyllama-1.1b", "--format", "mxfp6_e3m2", "--activations", "int8"), "take int16"),
        (("some.bundle", "--format", "mxint8"), "a bundle has its own"),
        ((), "expected either BUNDLE or --shape"),
    ],
)
def test_what_to_measure_is_one_thing(arguments: tuple[str, ...], said: str) -> None:
    result = specbench("model", *arguments)
    assert result.exit_code == 1
    assert said in result.output
