"""speccheck through click's runner: figures against logits taken from the models themselves, verdicts, errors."""

from __future__ import annotations

import json
import selectors
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from safetensors.torch import load_file
from scipy.special import log_softmax

from mxspec import Engine
from mxspec.compile.check import own_weights
from mxspec.compile.pipeline import compile_bundle
from mxspec.compile.progress import Stages
from mxspec.evaluate import speccheck
from mxspec.evaluate.accuracy import Comparison
from mxspec.evaluate.speccheck import main
from mxspec.formats.manifest import BudgetEntry
from mxspec.recipes.recipe import Recipe
from tests.compile.checkpoint.test_adapter import write_adapter

TEXT = "a text that both models read, longer than one chunk of sixteen tokens, and than one window.\n" * 60


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def accuracy(bundle: Path, text: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["accuracy", str(bundle), "--text", str(text), *options])


def test_json_agrees_with_the_logits_of_both_models(demo_with_baseline: Path, text: Path) -> None:
    result = accuracy(demo_with_baseline, text, "--json", "--max-ratio", "1000")
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    engine = Engine(demo_with_baseline)
    ids = engine.encode(TEXT)
    window = engine.bundle.manifest.models["target"].context_length
    losses = {}
    for model in ("target", "baseline"):
        found = []
        for start in range(0, len(ids), window):
            piece = ids[start : start + window]
            logits = np.concatenate(list(engine.score(piece, model=model))).astype(np.float64)  # type: ignore[arg-type]
            found += list(-log_softmax(logits[:-1], axis=-1)[np.arange(len(piece) - 1), piece[1:]])
        losses[model] = np.mean(found)
        assert got["tokens"] == len(found)
    assert got["target_perplexity"] == pytest.approx(np.exp(losses["target"]), rel=1e-9)
    assert got["baseline_perplexity"] == pytest.approx(np.exp(losses["baseline"]), rel=1e-9)
    assert got["ratio"] == pytest.approx(np.exp(losses["target"] - losses["baseline"]), rel=1e-9)
    assert got["mean_kl_divergence"] > 0
    assert 0 < got["same_top_share"] <= 1


def test_a_ratio_beyond_the_limit_is_a_failed_check(
    demo_with_baseline: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worse = Comparison(tokens=100, target_nll=102.0, baseline_nll=100.0)  # a ratio of exp(0.02)
    monkeypatch.setattr(speccheck, "compare_models", lambda *arguments: iter([worse]))
    result = accuracy(demo_with_baseline, text)
    assert result.exit_code == 2
    assert "perplexity ratio: got 1.02020, expected at most 1.01" in result.stderr
    assert accuracy(demo_with_baseline, text, "--max-ratio", "1.03").exit_code == 0


def test_the_demo_pair_passes_and_its_table_says_so(demo_with_baseline: Path) -> None:
    held_out = Path(selectors.__file__)  # one of the files that it was not trained on: recipes/demo/held_out.txt
    result = accuracy(demo_with_baseline, held_out)
    assert result.exit_code == 0, result.output
    for word in ("perplexity, packed", "perplexity, fp16", "mean KL", "same top token", "passed"):
        assert word in result.stderr


def test_a_bundle_without_a_baseline_says_what_to_do(tiny_bundles: dict[str, Path], text: Path) -> None:
    result = accuracy(tiny_bundles["near"], text)
    assert result.exit_code == 1
    assert "speccompile --with-baseline" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--text", "nowhere.txt"], "nowhere.txt: cannot be read"), (["--max-ratio", "0.5"], "max-ratio")],
)
def test_mistakes_take_one_line(tiny_bundles: dict[str, Path], text: Path, options: list[str], message: str) -> None:
    result = accuracy(tiny_bundles["near"], text, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bundle_made_for_a_ratio_is_held_to_it(demo_with_baseline: Path) -> None:
    comparison = Comparison(tokens=100, target_nll=100.6, baseline_nll=100.0)  # a ratio of exp(0.006)
    plain = Engine(demo_with_baseline).bundle.manifest.models["target"]
    budget = BudgetEntry(
        max_ratio=1.005,
        allowed_formats=("mxint8",),
        reached_bits=8.25,
        predicted_ratio=1.0049,
        text_sha256="0" * 64,
        tokens=1,
        seed=0,
        products=(),
    )
    chosen = plain.model_copy(update={"budget": budget})
    assert speccheck.describe(comparison, plain, None)["passed"] is True
    assert "predicted_ratio" not in speccheck.describe(comparison, plain, None)
    held = speccheck.describe(comparison, chosen, None)
    assert (held["passed"], held["max_ratio"], held["predicted_ratio"]) == (False, 1.005, 1.0049)
    assert speccheck.describe(comparison, chosen, 1.007)["passed"] is True
    by_bits = plain.model_copy(update={"budget": budget.model_copy(update={"max_ratio": None, "budget_bits": 5.0})})
    assert speccheck.describe(comparison, by_bits, None)["max_ratio"] == 1.01
    labels = list(speccheck.as_table(held).columns[0].cells)
    assert labels[labels.index("ratio (at most 1.005)") + 1] == "ratio predicted"


DEMO = Path(__file__).parents[2] / "recipes" / "demo"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def logits(bundle: Path, checkpoint: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["logits", str(bundle), str(checkpoint), *options])


@pytest.mark.parametrize("model", ["target", "draft", "baseline"])
def test_logits_are_those_of_transformers(demo_with_baseline: Path, model: str) -> None:
    checkpoint = DEMO / ("draft" if model == "draft" else "target")
    result = logits(demo_with_baseline, checkpoint, "--model", model, "--json")
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert (got["model"], got["tokens"], got["passed"]) == (model, 288, True)
    assert got["error_stored_weights"] < 2e-3
    packed = model == "target"  # whose weights are not those of the checkpoint
    assert (got["error_checkpoint_weights"] > 10 * got["error_stored_weights"]) == packed


def test_logits_on_a_text_as_a_table_and_a_record(demo_with_baseline: Path, text: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ["--text", str(text), "--tokens", "40", "--record", str(record)]
    result = logits(demo_with_baseline, DEMO / "target", *options)
    assert result.exit_code == 0, result.output
    for word in ("logits of the target", "tokens compared", "160", "weights as stored", "passed"):
        assert word in result.stderr
    assert json.loads(record.read_text())["result"]["tokens"] == 160


def test_logits_beyond_the_tolerance_are_a_failed_check(
    demo_with_baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_weights, "TOLERANCE", {"int16": 1e-6})
    result = logits(demo_with_baseline, DEMO / "target")
    assert result.exit_code == 2
    assert "target: differs from transformers with the same weights by" in result.stderr
    assert "failed" in result.stderr


def test_logits_of_another_checkpoint_and_of_a_short_text(demo_with_baseline: Path, tmp_path: Path) -> None:
    other = logits(demo_with_baseline, DEMO / "draft")
    assert other.exit_code == 1
    assert "the bundle was made from another" in other.stderr
    short = tmp_path / "short.txt"
    short.write_text("too short")
    result = logits(demo_with_baseline, DEMO / "target", "--text", str(short))
    assert result.exit_code == 1
    assert "expected at least 75: give a longer text" in result.stderr
    assert logits(demo_with_baseline, tmp_path).exit_code == 1


def test_logits_with_an_adapter_out_of_pickles(tmp_path: Path) -> None:
    """What compiling merged, the check merges: without the adapter the checkpoint is another."""
    base, adapter, bundle = (tmp_path / name for name in ("base", "adapter", "x.bundle"))
    shutil.copytree(DEMO / "draft", base, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(DEMO / "draft" / "model.safetensors"), base / "pytorch_model.bin")
    adapter.mkdir()
    n, k = load_file(DEMO / "draft" / "model.safetensors")[QUERY].shape
    write_adapter(adapter, {QUERY.removesuffix(".weight"): (n, k, 4)})
    recipe = Recipe.of_checkpoints(str(base)).with_changes(from_pickle=True, target={"adapter": str(adapter)})
    compile_bundle(recipe, bundle, with_baseline=False, force=False, stages=Stages(Console(quiet=True)))
    assert "--from-pickle" in logits(bundle, base).stderr
    options = ["--from-pickle", "--json"]
    without, merged = logits(bundle, base, *options), logits(bundle, base, *options, "--adapter", str(adapter))
    assert (without.exit_code, "away from model.layers.0" in without.stderr) == (2, True)
    assert merged.exit_code == 0, merged.output
    assert json.loads(merged.stdout)["error_stored_weights"] < 5e-3
    assert "no directory" in logits(bundle, base, *options, "--adapter", "./nowhere").stderr
