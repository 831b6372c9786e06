"""What a target may lose: a limit that refuses it, and a warning in the last line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mxspec.compile import pipeline
from mxspec.compile.check.cost import measure_cost
from mxspec.compile.commands.report import LARGE
from mxspec.compile.commands.speccompile import main
from tests.compile.commands.test_speccompile import write_pair


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"), "llama").parent / "target"


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "measure_cost", measure_cost)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments), "--rounding", "nearest"])


def test_a_target_that_loses_more_than_its_limit_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.bundle"
    refused = run(checkpoint, "-o", output, "--rounding-minutes", "0", "--max-loss", "0")
    assert refused.exit_code == 2
    assert "max_loss: the target loses" in refused.output
    assert not output.exists()
    kept = run(checkpoint, "-o", output, "--rounding-minutes", "0", "--max-loss", "100", "--json")
    assert kept.exit_code == 0, kept.output
    assert json.loads(kept.stdout)["models"]["target"]["cost"]["divergence"] > 0


def test_the_last_line_warns_of_a_loss(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured = run(checkpoint, "-o", tmp_path / "a.bundle", "--rounding-minutes", "0")
    assert "rounded to nearest, and its loss was not measured" in unmeasured.output.splitlines()[-1]
    small = run(checkpoint, "-o", tmp_path / "c.bundle", "--target-format", "fp16")
    assert small.output.splitlines()[-1].startswith("compiled in")
    loses = 2 * np.log1p(LARGE)
    monkeypatch.setattr(
        pipeline, "measure_cost", lambda *of: measure_cost(*of).model_copy(update={"divergence": loses})
    )
    large = run(checkpoint, "-o", tmp_path / "b.bundle")
    assert f"warning: the target loses about {np.expm1(loses):.0%} of its perplexity" in large.output.splitlines()[-1]
