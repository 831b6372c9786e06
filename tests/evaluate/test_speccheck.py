"""speccheck through click's runner: figures against logits taken from the models themselves, verdicts, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy.special import log_softmax

from mxspec import Engine
from mxspec.evaluate.speccheck import main

TEXT = "a text that both models read, longer than one chunk of sixteen tokens, and than one window of ninety-six.\n" * 2


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def accuracy(bundle: Path, text: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["accuracy", str(bundle), "--text", str(text), *options])


def test_json_agrees_with_the_logits_of_both_models(tiny_bundles: dict[str, Path], text: Path) -> None:
    result = accuracy(tiny_bundles["near"], text, "--json", "--max-ratio", "1000")
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    engine = Engine(tiny_bundles["near"])
    ids = engine.encode(TEXT)
    losses = {}
    for model in ("target", "baseline"):
        found = []
        for start in range(0, len(ids), 96):
            window = ids[start : start + 96]
            logits = np.concatenate(list(engine.score(window, model=model))).astype(np.float64)  # type: ignore[arg-type]
            found += list(-log_softmax(logits[:-1], axis=-1)[np.arange(len(window) - 1), window[1:]])
        losses[model] = np.mean(found)
        assert got["tokens"] == len(found)
    assert got["target_perplexity"] == pytest.approx(np.exp(losses["target"]), rel=1e-9)
    assert got["baseline_perplexity"] == pytest.approx(np.exp(losses["baseline"]), rel=1e-9)
    assert got["ratio"] == pytest.approx(np.exp(losses["target"] - losses["baseline"]), rel=1e-9)
    assert got["mean_kl_divergence"] > 0
    assert 0 < got["same_top_share"] <= 1


def test_a_ratio_beyond_the_limit_is_a_failed_check(tiny_bundles: dict[str, Path], text: Path) -> None:
    exact = json.loads(accuracy(tiny_bundles["near"], text, "--json", "--max-ratio", "1000").stdout)["ratio"]
    assert exact != 1.0
    passed = exact <= 1.0
    result = accuracy(tiny_bundles["near"], text, "--max-ratio", "1")
    assert result.exit_code == (0 if passed else 2)
    assert ("perplexity ratio" in result.stderr) == (not passed)


def test_the_demo_pair_passes_and_its_table_says_so(demo_bundles: dict[str, Path]) -> None:
    held_out = Path(__file__).resolve().parents[2] / "compile" / "pipeline.py"  # Python that it has not seen
    result = accuracy(demo_bundles["real"], held_out, "--max-tokens", "1500")
    assert result.exit_code == 0, result.output
    for word in ("perplexity, packed", "perplexity, fp16", "mean KL", "same top token", "passed"):
        assert word in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--text", "nowhere.txt"], "nowhere.txt: cannot be read"), (["--max-ratio", "0.5"], "max-ratio")],
)
def test_mistakes_take_one_line(tiny_bundles: dict[str, Path], text: Path, options: list[str], message: str) -> None:
    result = accuracy(tiny_bundles["near"], text, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
