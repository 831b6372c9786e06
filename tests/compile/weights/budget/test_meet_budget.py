"""speccompile --budget and --max-ratio, from recipe to manifest, bytes and report."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.model import Model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.budget.meet_budget import meet_budget
from mxspec.evaluate.accuracy.ranks import rank_tensors
from mxspec.formats.bundle import Bundle
from mxspec.formats.manifest import BudgetEntry, ProductEntry
from mxspec.formats.weight_format import ELEMENTS, WEIGHT_FORMATS
from mxspec.recipes.recipe import Recipe
from tests.compile.commands.test_speccompile import done, speccompile, write_mixture, write_pair, write_words


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a pair, and beside it text.txt."""
    folder = tmp_path_factory.mktemp("pair")
    write_words(folder / "text.txt", 800)
    return write_pair(folder, "llama")


def compiled(pair: Path, output: Path, *options: object) -> dict[str, Any]:
    result = done(pair, "-o", output, "--calibrate", pair.parent / "text.txt", "--json", *options)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_bits_a_weight(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.bundle"
    report = compiled(pair, path, "--budget", "5.2bpw", "--calibration-tokens", "320", "--seed", "3")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bundle"]  # nothing is left beside it
    target = Bundle.open(path).manifest.models["target"]
    budget = target.budget
    assert budget is not None
    assert report["models"]["target"]["budget"] == budget.model_dump(mode="json")
    assert report["models"]["draft"]["budget"] is None
    text = (pair.parent / "text.txt").read_bytes()
    assert (budget.budget_bits, budget.max_ratio) == (5.2, None)
    assert budget.text_sha256 == hashlib.sha256(text).hexdigest()
    assert (budget.tokens, budget.seed) == (288, 3)  # three windows of the context's 96
    assert budget.allowed_formats == tuple(form.name for form in ELEMENTS.values())

    matrices = {tensor.name: tensor for tensor in target.tensors if tensor.format in WEIGHT_FORMATS}
    assert {name: matrices[name].format for name in matrices} == {
        product.name: product.format for product in budget.products
    }
    assert len({product.format for product in budget.products}) > 1
    taken = sum(tensor.bytes for tensor in matrices.values())
    weights = sum(math.prod(tensor.shape) for tensor in matrices.values())
    assert budget.reached_bits == pytest.approx(8 * taken / weights)
    assert 4.6 < budget.reached_bits <= 5.2


def test_the_ranking_and_the_prediction(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.bundle"
    compiled(pair, path, "--max-ratio", "1.002", "--calibration-tokens", "320")
    budget = Bundle.open(path).manifest.models["target"].budget
    assert budget is not None
    assert budget.predicted_ratio == pytest.approx(math.exp(sum(product.loss for product in budget.products)))
    assert 1 < budget.predicted_ratio <= budget.max_ratio == 1.002  # type: ignore[operator]
    ranks = [product.loss_a_byte for product in budget.products]
    assert ranks == sorted(ranks, reverse=True)
    for product in budget.products:
        assert product.loss == product.losses[product.format]
        largest = product.bytes + product.saved_bytes
        lost = product.losses["mxfp4_e2m1"] - product.losses["mxint8"]
        assert product.loss_a_byte == pytest.approx(lost / (largest * (1 - 272 / 528)))
    shown = speccompile("inspect", path)
    assert "a ratio of 1.002 asked" in shown.output
    assert "layers.0.self_attn" in shown.output


def test_patterns_win_and_count(pair: Path, tmp_path: Path) -> None:
    options = ["--matrix-format", "*.0.self_attn.q_proj.*", "mxint8", "--keep-fp16", "lm_head.*"]
    options += ["--allow", "mxfp4_e2m1", "--allow", "mxfp6_e2m3", "--calibration-tokens", "320"]
    path = tmp_path / "a.bundle"
    compiled(pair, path, "--budget", "7bpw", *options)
    target = Bundle.open(path).manifest.models["target"]
    assert target.budget is not None
    formats = {tensor.name: tensor.format for tensor in target.tensors if tensor.format in WEIGHT_FORMATS}
    assert formats.pop("lm_head.weight") == "fp16_tiles"
    assert formats.pop("model.layers.0.self_attn.q_proj.weight") == "mxint8"
    assert set(formats.values()) <= {"mxfp4_e2m1", "mxfp6_e2m3"}
    fixed = {product.name: product.losses for product in target.budget.products if product.fixed}
    assert fixed["lm_head.weight"] == {"fp16_tiles": 0.0}
    assert list(fixed) == ["model.layers.0.self_attn.q_proj.weight", "lm_head.weight"]
    assert target.budget.reached_bits <= 7


def test_with_careful_rounding(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.bundle"
    compiled(pair, path, "--budget", "5.2bpw", "--rounding", "gptq", "--calibration-tokens", "576", "--with-baseline")
    models = Bundle.open(path).manifest.models
    target = models["target"]
    assert target.rounding is not None
    assert target.budget is not None
    assert target.rounding.method == "gptq"
    assert target.rounding.tokens == 576
    assert target.budget.tokens == 96  # the other windows make the trial rounding
    assert {models["baseline"].format, models["draft"].format} == {"fp16_tiles"}
    assert models["baseline"].budget is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "4bpw"], "budget: got 4 bits a weight, expected 4.25 to 8.25: what the formats allowed (mxfp6"),
        (["--budget", "9bpw"], "budget: got 9 bits a weight"),
        (["--budget", "five"], "target.budget: expected bits a weight, such as '5.2bpw', got 'five'"),
        (["--budget", "5bpw", "--max-ratio", "1.1"], "got both `budget` and `max_ratio`"),
        (["--max-ratio", "1.0000001", "--calibration-tokens", "100"], "max_ratio: got 1, expected at least 1.0"),
        (["--max-ratio", "1"], "max-ratio"),
        (["--allow", "mxint8"], "`allowed_formats` goes with `budget` or `max_ratio`"),
        (["--budget", "5bpw", "--allow", "mxfp5"], "allow"),
    ],
)
def test_budgets_that_cannot_be(pair: Path, tmp_path: Path, options: list[str], message: str) -> None:
    result = speccompile(pair, "-o", tmp_path / "a.bundle", "--calibrate", pair.parent / "text.txt", *options)
    assert result.exit_code == 1
    assert message in result.stderr.splitlines()[-1]
    assert not (tmp_path / "a.bundle").exists()


def test_a_budget_without_a_text_is_refused(pair: Path, tmp_path: Path) -> None:
    result = speccompile(pair, "-o", tmp_path / "a.bundle", "--budget", "5bpw")
    assert result.exit_code == 1
    assert "a budget needs `calibrate`, a text file" in result.stderr


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts with two layers, and beside it text.txt."""
    folder = tmp_path_factory.mktemp("mixture")
    write_words(folder / "text.txt", 800)
    return write_mixture(folder)


def experts_of(products: tuple[ProductEntry, ...]) -> dict[str, ProductEntry]:
    return {product.name: product for product in products if ".experts" in product.name}


def test_the_experts_of_a_layer_are_one_choice(mixture: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.bundle"
    report = compiled(mixture, path, "--max-ratio", "1.0002", "--calibration-tokens", "320")
    target = Bundle.open(path).manifest.models["target"]
    budget = target.budget
    assert budget is not None
    assert report["models"]["target"]["budget"] == budget.model_dump(mode="json")
    assert 1 < budget.predicted_ratio <= 1.0002
    assert len({product.format for product in budget.products if not product.fixed}) > 1
    packed = {tensor.name: tensor for tensor in target.tensors if tensor.format in WEIGHT_FORMATS and tensor.sources}
    found = experts_of(budget.products)
    assert set(found) == {f"model.layers.{layer}.mlp.experts" for layer in range(2)}
    for name, product in found.items():
        both = [packed.pop(f"{name}.{leaf}") for leaf in ("gate_up_proj", "down_proj")]
        assert {tensor.format for tensor in both} == {product.format}
        assert product.bytes == sum(tensor.bytes for tensor in both)
        losses = [product.losses[kind] for kind in ("mxint8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_e2m1")]
        assert losses == sorted(losses)
        assert losses[0] > 0
    others = {product.name: product for product in budget.products if product.name not in found}
    assert {name: tensor.format for name, tensor in packed.items()} == {
        name: product.format for name, product in others.items()
    }
    assert {name: tensor.bytes for name, tensor in packed.items()} == {
        name: product.bytes for name, product in others.items()
    }
    routers = {name: product for name, product in others.items() if name.endswith("mlp.gate.weight")}
    assert len(routers) == 2
    assert all(product.fixed and product.format == "fp16_tiles" for product in routers.values())
    shown = speccompile("inspect", path)
    assert "a ratio of 1.0002 asked" in shown.output
    assert "layers.0.mlp.experts " in shown.output
    (worst,) = rank_tensors(target, 1)
    assert worst.predicted_loss is not None


def test_bits_a_weight_of_a_mixture_rounded_with_care(mixture: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.bundle"
    options = ["--rounding", "gptq", "--calibration-tokens", "576", "--matrix-format", "*.0.*.down_proj", "mxint8"]
    compiled(mixture, path, "--budget", "6bpw", *options)
    target = Bundle.open(path).manifest.models["target"]
    assert target.budget is not None
    assert 5.5 < target.budget.reached_bits <= 6
    down, gate_up, both = sorted(experts_of(target.budget.products))
    assert (down, gate_up) == tuple(f"model.layers.0.mlp.experts.{leaf}_proj" for leaf in ("down", "gate_up"))
    assert both == "model.layers.1.mlp.experts"
    (fixed,) = (product for product in target.budget.products if product.name == down)
    assert (fixed.format, fixed.fixed) == ("mxint8", True)


def test_a_long_ranking_shows_its_ends(pair: Path) -> None:
    from mxspec.compile.commands.budget_table import budget_table

    product = {"format": "mxint8", "bytes": 10, "saved_bytes": 0, "loss": 0.0, "losses": {"mxint8": 0.0}}
    products = [{**product, "name": f"p{i}", "loss_a_byte": 1.0 / (i + 1)} for i in range(100)]
    entry = BudgetEntry.model_validate_json(
        json.dumps(
            {"budget_bits": 8.5, "allowed_formats": ["mxint8"], "reached_bits": 8.25, "predicted_ratio": 1.0,
             "text_sha256": "0" * 64, "tokens": 3, "seed": 0, "products": products}
        )
    )  # fmt: skip
    names = list(budget_table(entry).columns[0].cells)
    assert names[:2] == ["p0", "p1"]
    assert names[-1] == "p99"
    assert len(names) < 30
    assert any("more" in name for name in map(str, names))


def test_a_head_that_tokens_are_looked_up_in_loses_there_as_well(tmp_path: Path) -> None:
    write_words(tmp_path / "text.txt", 200)
    recipe = Recipe.load(write_pair(tmp_path, "gpt2")).with_changes(calibrate="text.txt", calibration_tokens=128)
    losses = []
    with Checkpoint(tmp_path / "target") as checkpoint:
        for tied in ("twice", "once"):
            wanted = recipe.target.model_copy(update={"budget": "5.2bpw", "tied": tied})
            model = Model("target", checkpoint, wanted, recipe, 64)
            chosen, budget = meet_budget(model, tmp_path, lambda count: None, Stages(Console(quiet=True)))
            assert chosen.tied == tied
            losses.append({product.name: product.losses for product in budget.products})
    twice, once = losses
    heads = [found.pop("lm_head.weight") for found in (twice, once)]
    assert all(heads[1][kind] > heads[0][kind] for kind in ("mxfp4_e2m1", "mxfp6_e3m2"))
    assert twice == once
