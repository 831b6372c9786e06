"""Products and attention alone: what is measured is there and hangs together. How fast it is, no test asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray

from bench.kernels import experts as experts_bench
from bench.kernels import ops as ops_bench
from mxspec.evaluate.bench import machine as read_ceiling
from mxspec.formats.native import ISAS
from mxspec.runtime import ops
from mxspec.runtime.ops.timing import read_loops

Laboratory = Callable[..., Result]


def test_products_are_timed_on_every_instruction_set(
    tmp_path: Path, laboratory: Laboratory, in_the_middle_half: Callable[..., bool]
) -> None:
    record = tmp_path / "ops.json"
    result = laboratory("ops", "--rows", "1", "--rows", "3", "--repetitions", "2", "--json", "--record", str(record))
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
    assert {(e["format"], e["rows"]) for e in got["experts"]} == {(f, m) for f in experts_bench.FORMATS for m in (1, 3)}
    assert {e["isa"] for e in got["experts"]} == set(ops.available_isas()) - {"scalar"}
    for e in got["experts"]:
        assert e["experts"] == 2 if e["rows"] == 1 else 2 <= e["experts"] <= 6
        assert e["bytes"] % e["experts"] == 0
        assert len(e["trials_seconds"]) == 2
        assert in_the_middle_half(e, ("seconds", "seconds_quartiles"), ("share_of_read", "share_quartiles"))
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
    monkeypatch.setattr(ops_bench, "measure_experts", lambda *_: [])
    result = ops_bench.measure(("avx2",), ("mxfp6_e3m2",), rows=(1,), repetitions=4)
    (found,) = result.products
    assert found.share_quartiles == pytest.approx((0.75, 0.75))
    assert found.trials_seconds == pytest.approx((2, 20, 20, 20))


def test_tables_show_spread_and_kind_of_activations(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laboratory: Laboratory
) -> None:
    isa = ops.available_isas()[-1]
    record = tmp_path / isa / "ops.json"
    options = ("--isa", isa, "--rows", "1", "--format", "fp16_tiles", "--format", "mxfp6_e2m3", "--repetitions", "2")
    result = laboratory("ops", *options, "--record", str(record))
    assert result.exit_code == 0, result.output
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    made = tables.Table((f"{isa}/ops",), (0, 2)).markdown()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in made.splitlines() if line.startswith("|")]
    assert [line[:2] for line in lines[2:5]] == [
        ["fp16_tiles", "float32"],
        ["mxfp6_e2m3", "int16"],
        ["mxfp6_e2m3", "int8"],
    ]
    assert all(re.fullmatch(r"\d+ ± \d+ \(\d+%\)", line[2]) for line in lines[2:5])
    assert re.search(r"\| 8 after 32 cached \| \d+ ± \d+ \| \d+\.\d\d ± \d+\.\d\d \|", made)


def test_a_row_is_routed_to_different_experts_all_equally_likely() -> None:
    layer = experts_bench.LAYERS[0]
    chosen = experts_bench.evenly_routed(6000, layer, np.random.default_rng(0))
    assert chosen.shape == (6000, layer.top_k)
    assert all(len(set(row)) == layer.top_k for row in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=layer.experts)
    np.testing.assert_allclose(counts, chosen.size / layer.experts, rtol=0.1)


def test_an_instruction_set_that_is_not_here_is_refused_by_name(laboratory: Laboratory) -> None:
    missing = next(isa for isa in ISAS if isa not in ops.available_isas())
    result = laboratory("ops", "--isa", missing)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: --isa {missing}: this machine does not have it; it has {', '.join(ops.available_isas())}\n"
    )
