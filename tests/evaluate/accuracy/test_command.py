"""speccheck accuracy through click's runner: figures against logits of the engine, verdicts, what is not finite."""

from __future__ import annotations

import json
import math
import selectors
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner, Result
from scipy.special import log_softmax
from tokenizers import Tokenizer, processors
from transformers import OlmoeConfig, OlmoeForCausalLM

from mxspec import Engine
from mxspec.evaluate.accuracy.judge import bar_of
from mxspec.evaluate.accuracy.ranks import advise, rank_tensors
from mxspec.evaluate.speccheck import main
from mxspec.formats.bundle import Bundle, file_sha256
from mxspec.formats.manifest import MANIFEST, TOKENIZER, BudgetEntry
from mxspec.runtime.models.reader import Reader
from tests.conftest import CONTEXT, EOS, VOCAB, compile_pair, make_byte_tokenizer

HELD_OUT = Path(selectors.__file__)  # one of the files that the demo was not trained on: recipes/demo/held_out.txt
DEMO = Path(__file__).parents[3] / "recipes" / "demo"
FEW = ("--max-tokens", "1500")  # tokens that are enough for an interval, and scored in a second


def accuracy(bundle: Path, *options: object, text: Path = HELD_OUT) -> Result:
    return CliRunner().invoke(main, ["accuracy", str(bundle), "--text", str(text), *map(str, options)])


def found(result: Result, exit_code: int = 0) -> dict[str, Any]:
    assert result.exit_code == exit_code, result.output
    parsed: dict[str, Any] = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return parsed


def copy_of(bundle: Path, folder: Path) -> Path:
    shutil.copytree(bundle, folder)
    return folder


@pytest.fixture
def with_bos(demo_with_baseline: Path, tmp_path: Path) -> Path:
    """The demo with a tokenizer that puts token 0 before every text."""
    bundle = copy_of(demo_with_baseline, tmp_path / "bos.bundle")
    tokenizer = Tokenizer.from_file(str(bundle / TOKENIZER))
    first = str(tokenizer.id_to_token(0))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    tokenizer.save(str(bundle / TOKENIZER))
    manifest = json.loads((bundle / MANIFEST).read_text())
    manifest["files"][TOKENIZER]["bytes"] = (bundle / TOKENIZER).stat().st_size
    manifest["files"][TOKENIZER]["sha256"] = manifest["tokenizer"]["sha256"] = file_sha256(bundle / TOKENIZER)
    (bundle / MANIFEST).write_text(json.dumps(manifest))
    return bundle


def own_losses(bundle: Path, tokens: Sequence[int], window: int, lead: Sequence[int]) -> dict[str, np.ndarray]:
    """Log-probabilities float64[rows, vocab] of both models by the engine, before each token that is scored; losses."""
    found: dict[str, list[np.ndarray]] = {"target": [], "baseline": [], "next": []}
    with Engine(bundle) as engine:
        for begin in range(0, len(tokens), window - len(lead)):
            piece = [*lead, *tokens[begin : begin + window - len(lead)]]
            found["next"].append(np.array(piece[1:]))
            for model in ("target", "baseline"):
                rows = np.concatenate(list(engine.score(piece, model=model)))[:-1]  # type: ignore[arg-type]
                found[model].append(log_softmax(rows.astype(np.float64), axis=-1))
    return {name: np.concatenate(parts) for name, parts in found.items()}


@pytest.mark.parametrize("bos", [False, True])
def test_json_agrees_with_the_logits_of_both_models(demo_with_baseline: Path, with_bos: Path, bos: bool) -> None:
    bundle, lead = (with_bos, (0,)) if bos else (demo_with_baseline, ())
    got = found(accuracy(bundle, "--json", "--window", "200", "--max-ratio", "10", *FEW))
    with Engine(demo_with_baseline) as engine:
        tokens = engine.encode(HELD_OUT.read_text())[:1500]
    own = own_losses(bundle, tokens, 200, lead)
    losses = {name: -own[name][np.arange(len(own["next"])), own["next"]] for name in ("target", "baseline")}
    divergence = (np.exp(own["baseline"]) * (own["baseline"] - own["target"])).sum(axis=1)
    assert got["tokens"] == len(own["next"]) == (1500 if bos else 1492)
    assert (got["windows_begin_with"] != [], got["window"], got["stride"]) == (bos, 200, 199 if bos else 200)
    assert got["target_perplexity"] == pytest.approx(np.exp(losses["target"].mean()), rel=1e-6)
    assert got["baseline_perplexity"] == pytest.approx(np.exp(losses["baseline"].mean()), rel=1e-6)
    assert got["ratio"] == pytest.approx(np.exp((losses["target"] - losses["baseline"]).mean()), rel=1e-6)
    assert got["mean_kl_divergence"] == pytest.approx(divergence.mean(), rel=1e-4)
    assert got["kl_divergence_p99"] == pytest.approx(np.percentile(divergence, 99, method="higher"), rel=1e-4)
    assert got["worst_kl_divergence"] == pytest.approx(divergence.max(), rel=1e-4)
    per_window = 199 if bos else 200
    worst = int(divergence.argmax())
    place = worst if bos else worst + worst // (per_window - 1) + 1
    assert got["worst_at"].endswith(f"token {place:,}")
    assert got["same_top_share"] == (own["target"].argmax(1) == own["baseline"].argmax(1)).mean()
    assert got["ratio_low"] < got["ratio"] < got["ratio_high"]


def test_overlapping_windows_score_the_same_tokens_with_more_before_them(demo_with_baseline: Path) -> None:
    options = ("--json", "--max-ratio", "10", "--window", "64", "--max-tokens", "800")
    apart, overlapping = (found(accuracy(demo_with_baseline, *options, "--stride", stride)) for stride in (64, 32))
    assert overlapping["tokens"] == 799
    assert overlapping["baseline_perplexity"] < 0.97 * apart["baseline_perplexity"]


def test_verdicts(demo_with_baseline: Path) -> None:
    """The ratio is about 1.0034: far within 1.05, beyond 1 by more than the interval, and hard to tell from itself."""
    passed = accuracy(demo_with_baseline, "--max-ratio", "1.05", *FEW)
    assert passed.exit_code == 0, passed.output
    for word in ("perplexity, packed", "perplexity, fp16", "95% interval", "99th percentile", "same top", "passed"):
        assert word in passed.stderr
    got = found(accuracy(demo_with_baseline, "--max-ratio", "1.05", "--json", "--format", "mxfp4_e2m1", *FEW))
    assert (got["passed"], got["verdict"], got["reasons"], got["tensors"]) == (True, "passed", [], [])
    assert got["beside"][0]["ratio_low"] > 1.02, "four bits are worse, beyond doubt"
    close = accuracy(demo_with_baseline, "--max-ratio", got["ratio"], "--json", *FEW)
    assert "error: too short to judge: 1,498 tokens, interval" in close.stderr
    assert (found(close, 2)["verdict"], found(close, 2)["passed"]) == ("too short", False)


def test_a_ratio_beyond_the_bar_fails_and_names_tensors(
    demo_with_baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Reader.forward

    def worse(self: Reader, tokens: Sequence[int], rows: int) -> np.ndarray:
        logits = forward(self, tokens, rows)
        return logits * np.float32(0.8) if self.session.entry.graph == "target.onnx" else logits

    monkeypatch.setattr(Reader, "forward", worse)
    result = accuracy(demo_with_baseline, "--json", *FEW)
    got = found(result, 2)
    assert (got["verdict"], got["passed"], len(got["tensors"])) == ("failed", False, 5)
    assert "error: perplexity ratio: got 1." in result.stderr
    assert "expected at most 1.01" in result.stderr
    errors = [tensor["error"] for tensor in got["tensors"]]
    target = Bundle.open(demo_with_baseline).manifest.models["target"]
    assert errors == sorted((tensor.error or 0 for tensor in target.tensors), reverse=True)[:5]
    assert any("--keep-fp16 " + got["tensors"][0]["sources"][0] in line for line in got["advice"])
    table = accuracy(demo_with_baseline, "--tensors", "2", *FEW)
    assert "packed tensors furthest from the checkpoint" in table.stderr


@pytest.mark.parametrize(("text", "said"), [("abcd", "fewer than the 10"), ("x", "fewer than 2 tokens")])
def test_a_text_too_short_to_judge_is_said_to_be(
    demo_with_baseline: Path, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "short.txt").write_text(text)
    result = accuracy(demo_with_baseline, "--json", text=tmp_path / "short.txt")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    if text == "abcd":
        got = found(result, 2)
        assert (got["verdict"], got["passed"], got["ratio_low"], got["ratio_high"]) == ("too short", False, None, None)
    else:
        assert result.exit_code == 1


def scale_norm(bundle: Path, factor: float) -> None:
    """Multiply the last norm of the packed target."""
    manifest = Bundle.open(bundle).manifest
    norm = next(tensor for tensor in manifest.models["target"].tensors if tensor.name == "model.norm.weight")
    weights = np.memmap(bundle / manifest.models["target"].weights, np.uint8, "r+")
    weights[norm.offset : norm.offset + norm.bytes].view(np.float32)[:] *= np.float32(factor)
    weights.flush()


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (math.nan, "target: got logits that are not finite for 1,498 of 1,498 tokens"),
        (1e4, "packed perplexity and perplexity ratio: too large for a number"),
    ],
)
def test_weights_that_are_no_numbers_or_too_large_fail(
    demo_with_baseline: Path, tmp_path: Path, factor: float, said: str
) -> None:
    bundle = copy_of(demo_with_baseline, tmp_path / "broken.bundle")
    scale_norm(bundle, factor)
    record = tmp_path / "record.json"
    result = accuracy(bundle, "--json", "--record", record, *FEW)
    got = found(result, 2)
    assert (got["passed"], got["verdict"], got["ratio"], got["target_perplexity"]) == (False, "failed", None, None)
    assert got["baseline_perplexity"] > 1
    assert got["reasons"] == [said]
    assert said in result.stderr
    assert json.loads(record.read_text())["result"] == got
    table = accuracy(bundle, *FEW)
    assert (table.exit_code, "not finite" in table.stderr) == (2, True)


@pytest.mark.parametrize("model", ["target", "baseline"])
@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_one_logit_that_is_no_number_fails(
    demo_with_baseline: Path, monkeypatch: pytest.MonkeyPatch, model: str, value: float
) -> None:
    forward = Reader.forward

    def broken(self: Reader, tokens: Sequence[int], rows: int) -> np.ndarray:
        logits = forward(self, tokens, rows).copy()
        if self.session.entry.graph == f"{model}.onnx" and self.length == len(tokens):
            logits[0, 5] = value
        return logits

    monkeypatch.setattr(Reader, "forward", broken)
    result = accuracy(demo_with_baseline, "--json", "--max-tokens", "900")
    got = found(result, 2)
    name = "fp16 baseline" if model == "baseline" else "target"
    assert got["reasons"] == [f"{name}: got logits that are not finite for 1 of 899 tokens"]
    assert (got["passed"], got["mean_kl_divergence"]) == (False, None)
    assert got["worst_at"].endswith("token 1")


def test_the_target_in_its_own_format_is_the_target(demo_with_baseline: Path) -> None:
    """Packed anew from the baseline, to the bit; an fp16 checkpoint loses nothing on the way."""
    options = ("--format", "mxfp6_e2m3", "--format", "mxfp6_e2m3/int8", "--format", "fp16", "--format", "mxint8")
    got = found(accuracy(demo_with_baseline, "--json", "--max-ratio", "10", *options, *FEW))
    same, rows, fp16, larger = got["beside"]
    assert same == {name: got[name] for name in same}
    assert (rows["format"], rows["activations"]) == ("mxfp6_e2m3", "int8")
    assert rows["mean_kl_divergence"] > same["mean_kl_divergence"] > larger["mean_kl_divergence"] > 0
    assert (fp16["ratio"], fp16["mean_kl_divergence"]) == (1, 0)


def test_the_experts_of_a_mixture_are_packed_too(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": CONTEXT, "vocab_size": VOCAB}
    torch.manual_seed(0)
    config = OlmoeConfig(**sizes, **experts, eos_token_id=EOS, tie_word_embeddings=True, initializer_range=0.3)
    model = OlmoeForCausalLM(config)
    model.half().save_pretrained(tmp_path / "mixture")
    make_byte_tokenizer().save(str(tmp_path / "mixture" / TOKENIZER))
    bundle = compile_pair(tmp_path, tmp_path / "mixture", tmp_path / "mixture", with_baseline=True, rounding="nearest")
    options = ("--format", "mxfp6_e2m3", "--format", "mxfp4_e2m1")
    got = found(accuracy(bundle, "--json", "--max-ratio", "1000", *options, *FEW))
    same, smaller = got["beside"]
    assert same == {name: got[name] for name in same}
    assert smaller["mean_kl_divergence"] > same["mean_kl_divergence"] > 0


def test_transformers_is_the_referee(demo_with_baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--json", "--max-ratio", "10", *FEW)
    got = found(accuracy(demo_with_baseline, "--referee", DEMO / "target", *options))
    assert got["referee"]["passed"] is True
    assert got["referee"]["perplexity"] == pytest.approx(got["baseline_perplexity"], rel=1e-3)
    assert abs(got["referee"]["ratio"] - 1) < 5e-4
    another = accuracy(demo_with_baseline, "--referee", DEMO / "draft", *options)
    assert (found(another, 2)["passed"], found(another, 2)["referee"]["passed"]) == (False, False)
    assert "made from another checkpoint" in another.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-ratio", "0.5"], "max-ratio"),
        (["--format", "mxfp7"], "expected one of fp16, mxfp6_e3m2"),
        (["--format", "mxfp6_e3m2/int8"], "mxfp6_e3m2 takes int16"),
        (["--window", "2000"], "expected 2 to 1024, the context of the model"),
        (["--stride", "1025"], "expected at most 1024, the window"),
        (["--adapter", "x"], "need --referee"),
        (["--referee", "./nowhere"], "nowhere"),
        (["--text", "nowhere.txt"], "nowhere.txt: cannot be read"),
    ],
)
def test_mistakes_take_one_line(demo_with_baseline: Path, options: list[str], message: str) -> None:
    result = accuracy(demo_with_baseline, *options)
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_full_disk_takes_one_line(demo_with_baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("4096 requested and 0 written")

    monkeypatch.setattr(ir, "save", full)
    result = accuracy(demo_with_baseline, "--format", "mxfp4_e2m1")
    assert result.exit_code == 1
    assert "cannot hold the model: 4096 requested and 0 written; set TMPDIR" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bundle_without_a_baseline_says_what_to_do(tiny_bundles: dict[str, Path]) -> None:
    result = accuracy(tiny_bundles["near"])
    assert result.exit_code == 1
    assert "speccompile --with-baseline" in result.stderr


def test_a_bundle_made_for_a_ratio_is_held_to_it(demo_with_baseline: Path) -> None:
    plain = Bundle.open(demo_with_baseline).manifest.models["target"]
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
    by_bits = plain.model_copy(update={"budget": budget.model_copy(update={"max_ratio": None, "budget_bits": 5.0})})
    assert [bar_of(entry, None) for entry in (plain, chosen, by_bits)] == [1.01, 1.005, 1.01]
    assert bar_of(chosen, 1.007) == 1.007
    worst = rank_tensors(plain, 1)
    assert any("--max-ratio" in line for line in advise(plain, worst))
    assert not any("--max-ratio" in line for line in advise(chosen, worst))


def test_own_text_is_what_the_fp16_target_writes(demo_with_baseline: Path) -> None:
    def own(*options: object) -> dict[str, Any]:
        arguments = ["accuracy", str(demo_with_baseline), "--own", "--max-ratio", "1.1", "--json", *map(str, options)]
        return found(CliRunner().invoke(main, arguments))

    first, again, other = own("--max-tokens", 1024), own("--max-tokens", 1024), own("--max-tokens", 1024, "--seed", 1)
    assert first["documents"] == 4
    assert first["tokens"] <= 1024
    assert (first["ratio"], first["baseline_perplexity"]) == (again["ratio"], again["baseline_perplexity"])
    assert first["baseline_perplexity"] != other["baseline_perplexity"]
    with_text = found(accuracy(demo_with_baseline, "--max-tokens", 1024, "--max-ratio", 1.1, "--json"))
    assert first["baseline_perplexity"] < with_text["baseline_perplexity"]  # a model is surer of its own text


@pytest.mark.parametrize("options", [[], ["--own", "--text", str(HELD_OUT)], ["--own", "--join"]])
def test_either_a_text_or_own_is_given(demo_with_baseline: Path, options: list[str]) -> None:
    result = CliRunner().invoke(main, ["accuracy", str(demo_with_baseline), *options])
    assert result.exit_code != 0
    assert "expected either --text, with its options, or --own" in " ".join(result.output.split())


def test_a_model_with_an_encoder_has_no_own_text(t5_bundle: Path) -> None:
    result = CliRunner().invoke(main, ["accuracy", str(t5_bundle), "--own"])
    assert result.exit_code == 1
    assert "--own: a model with an encoder writes nothing without a source" in " ".join(result.output.split())


def test_all_formats_stand_beside_their_sizes(demo_with_baseline: Path) -> None:
    got = found(accuracy(demo_with_baseline, "--max-ratio", 1.5, "--json", "--format", "all", *FEW))
    target = Bundle.open(demo_with_baseline).manifest.models["target"]
    weights = sum(math.prod(tensor.shape) for tensor in target.tensors if tensor.format == target.format)
    bits = {each["format"]: 8 * each["matrix_bytes"] / weights for each in got["beside"]}
    expected = {"mxfp4_e2m1": 4.25, "mxfp6_e3m2": 6.25, "mxfp6_e2m3": 6.25, "mxint8": 8.25}
    assert bits == pytest.approx(expected, rel=0.01)  # tiles of 16 rows are filled up
    assert got["matrix_bytes"] == sum(tensor.bytes for tensor in target.tensors if tensor.format == target.format)
    own = next(each for each in got["beside"] if each["format"] == got["format"])
    assert own["matrix_bytes"] == got["matrix_bytes"]


def test_a_second_rounding_is_named(demo_with_baseline: Path, tmp_path: Path) -> None:
    bundle = copy_of(demo_with_baseline, tmp_path / "twice.bundle")
    manifest = json.loads((bundle / MANIFEST).read_text())
    manifest["models"]["target"]["tensors"][0]["origins"] = ["Q4_1", "Q8_0"]
    (bundle / MANIFEST).write_text(json.dumps(manifest))
    result = accuracy(bundle, "--max-ratio", 1.5, *FEW)
    assert result.exit_code == 0, result.output
    assert "rounded a second time, after Q4_1, Q8_0" in " ".join(result.output.replace("│", " ").split())
    assert "second time" not in accuracy(demo_with_baseline, "--max-ratio", 1.5, *FEW).output
