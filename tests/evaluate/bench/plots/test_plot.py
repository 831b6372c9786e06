"""`specbench plot`: what is drawn is what the record says, the same for the same record, and refused in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from matplotlib.figure import Figure

from mxspec.evaluate.accuracy.result import Accuracy, Figures
from mxspec.evaluate.bench.plots.draw import pictures_of
from mxspec.evaluate.bench.speculate.result import SpeculationResult

Specbench = Callable[..., Result]
AXES = {"bundle": "b.bundle", "threads": 2, "batch": 1, "context": 64, "temperature": 0.0}
AXES |= {"drafter": "model", "verifier": "greedy"}


def point(k: int | str, **axes: Any) -> dict[str, Any]:
    """Three trials of 100 tokens; at K = k a speedup of about k."""
    factor = 1 if k == "auto" else int(k)
    trials = [
        {"prompt": i, "repetition": 0, "texts": 1, "tokens": 100, "decode_seconds": s / factor}
        | {"plain_tokens": 100, "plain_seconds": s, "fp16_tokens": None, "fp16_seconds": None}
        | {"read_bytes": 1000, "read_bytes_per_second": 1e9}
        for i, s in enumerate((1.0, 1.1, 1.3))
    ]
    percentiles = {"median": 1.4 / factor, "p90": 1.6 / factor, "p99": 1.7 / factor}
    figures = {"tokens_per_second": 100 * factor / 1.1, "plain_tokens_per_second": 100 / 1.1, "speedup": factor}
    figures |= {"predicted": None if k == "auto" else factor * 1.1, "acceptance": 0.7, "tokens_per_round": 2.0}
    figures |= {"c": 0.01, "v": 1.2, "answer_seconds": percentiles, "plain_answer_seconds": percentiles}
    figures |= {"fp16_tokens_per_second": None, "over_fp16": None, "drafted_per_round": 2.0, "outside_models": 0.1}
    figures |= {"bytes_per_second": 1e9, "share_of_read": 0.5}
    counts = {"evaluated_by_position": [10, 8, 4], "accepted_by_position": [8, 4, 1]}
    return {**AXES, "k": k, **axes, **figures, **counts, "trials": trials}


def sweep(*points: dict[str, Any]) -> dict[str, Any]:
    return {"prompts": 3, "new_tokens": 101, "repetitions": 1, "points": points}


def write(path: Path, result: dict[str, Any], kind: str = "speculation") -> str:
    machine = {"cpu": "A CPU", "instruction_set": "avx2", "cores": 2}
    head = {
        "kind": kind,
        "command": "specbench speculate b.bundle",
        "commit": "abc",
        "machine": machine,
        "versions": {},
    }
    path.write_text(json.dumps({**head, "result": result}))
    return str(path)


def drawn(result: dict[str, Any], name: str) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of a picture, by their names."""
    axes = Figure().add_subplot()
    pictures_of(SpeculationResult.model_validate(result))[name](axes)
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_lines_are_what_the_points_say() -> None:
    result = sweep(point(4), point(2), point("auto"), point(2, drafter="suffix"))
    lines = drawn(result, "speedup")
    assert lines["model"] == ([2, 4], [2.0, 4.0])
    assert lines["model: formula"] == ([2, 4], pytest.approx([2.2, 4.4]))
    assert lines["suffix"] == ([2], [2.0])
    times = drawn(sweep(point(4), point(2)), "answer")
    assert times["median, to 90th percentile"] == ([2, 4], [0.7, 0.35])
    assert times["99th percentile"] == ([2, 4], [0.85, 0.425])
    (positions,) = drawn(sweep(point(4), point(2)), "positions").values()
    assert positions == ([1, 2, 3], [0.8, 0.5, 0.25])
    speeds = drawn(sweep(point(2, context=64), point(2, context=512)), "context")
    assert speeds["speculating"] == ([64, 512], pytest.approx([200 / 1.1, 200 / 1.1]))
    assert speeds["plain"] == ([64, 512], pytest.approx([100 / 1.1, 100 / 1.1]))
    assert set(drawn(sweep(point(2, batch=1), point(2, batch=4)), "batch")) == {"speculating", "plain"}


def test_files_are_the_same_for_the_same_record(specbench: Specbench, tmp_path: Path) -> None:
    record = write(tmp_path / "a.json", sweep(point(2), point(4)))
    for folder in ("one", "two"):
        done = specbench("plot", record, "-o", str(tmp_path / folder))
        assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(f"a-{name}.{kind}" for name in ("speedup", "answer", "positions") for kind in ("png", "svg"))
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    write(tmp_path / "a.json", sweep(point(2), point(5)))
    specbench("plot", record, "-o", str(tmp_path / "two"))
    assert (tmp_path / "one" / "a-speedup.svg").read_bytes() != (tmp_path / "two" / "a-speedup.svg").read_bytes()


def test_a_record_without_a_picture_is_one_line(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = write(tmp_path / "b.json", {"old": "a", "new": "b", "warnings": [], "figures": []}, "compare")
    record = write(tmp_path / "a.json", sweep(point(2)))
    for records, words in (((comparison,), "no picture can be made of it"), ((record, record), "tell their pictures")):
        done = specbench("plot", *records, "-o", str(tmp_path / "out"))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert words in done.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = specbench("plot", record, "-o", str(tmp_path / "out"))
    assert done.stderr == "error: a picture needs matplotlib: pip install 'mxspec[evaluate]'\n"


def test_formats_are_points_of_size_and_divergence() -> None:
    figures = {"activations": "int16", "target_perplexity": 9.0, "ratio": 1.01, "ratio_low": 1.0, "ratio_high": 1.02}
    figures |= {"kl_divergence_p99": 0.1, "worst_kl_divergence": 0.2, "same_top_share": 0.9, "not_finite_tokens": 0}
    beside = [
        Figures(format=name, mean_kl_divergence=kl, matrix_bytes=size, **figures)
        for name, kl, size in (("mxfp6_e3m2", 0.02, 6_250_000), ("mxint8", 0.001, 8_250_000))
    ]
    result = Accuracy.model_construct(
        bundle="b", tokens=10, format="mxfp6_e3m2", mean_kl_divergence=0.01, matrix_bytes=6_250_000, beside=beside
    )
    result = result.model_copy(update={**figures, "beside": tuple(beside)})
    axes = Figure().add_subplot()
    pictures_of(result)["accuracy"](axes)
    points = [points.get_offsets().tolist() for points in axes.collections]  # type: ignore[union-attr]
    assert points == [[[6.25, 0.01]], [[6.25, 0.02], [8.25, 0.001]]]
    assert [text.get_text() for text in axes.texts] == ["mxfp6_e3m2 (1.010)", "mxfp6_e3m2 (1.010)", "mxint8 (1.010)"]
    assert pictures_of(result.model_copy(update={"beside": ()})) == {}


def test_quartiles_bound_the_band() -> None:
    axes = Figure().add_subplot()
    pictures_of(SpeculationResult.model_validate(sweep(point(2), point(4))))["speedup"](axes)
    trials = [2.0, 2.0, 2.0]  # all trials of a point have its speedup
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]  # type: ignore[index]
    assert min(heights) == pytest.approx(np.percentile(trials, 25))
    assert max(heights) == pytest.approx(4.0)
