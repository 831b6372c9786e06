"""speccheck logits through click's runner: errors of logits, verdicts, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from safetensors.torch import load_file

from mxspec.compile.check import own_weights
from mxspec.compile.pipeline import compile_bundle
from mxspec.compile.progress import Stages
from mxspec.evaluate.speccheck import main
from mxspec.recipes.recipe import Recipe
from tests.compile.checkpoint.test_adapter import write_adapter

TEXT = "a text that both models read, longer than one chunk of sixteen tokens, and than one window.\n" * 60


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


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
    monkeypatch.setattr(own_weights, "TOLERANCE", 1e-6)
    result = logits(demo_with_baseline, DEMO / "target")
    assert result.exit_code == 2
    assert "target.onnx: differs from transformers with the same weights by" in result.stderr
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


def test_logits_with_an_adapter_out_of_pickles(tmp_path: Path, each_model_compiled_once: None) -> None:
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
