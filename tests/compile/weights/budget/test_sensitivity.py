"""Predicted losses against what happens: the divergence of the whole model in float64 when its matrices are moved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mxspec.compile.weights.budget import loss, sensitivity
from mxspec.compile.weights.budget.experts import Losses
from mxspec.compile.weights.budget.sensitivity import Sensitivity
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.store import RoundingStore
from mxspec.formats.tiles import dequantize, quantize
from mxspec.formats.weight_format import ELEMENTS, FP16_TILES
from mxspec.recipes.recipe import Rounding
from tests.compile.weights.rounding.conftest import Opened, open_tiny

__all__ = ["open_tiny"]

Open = Callable[[str], Opened]
FORMATS = [form.name for form in ELEMENTS.values()]
WINDOWS = np.random.default_rng(0).integers(3, 120, (48, 16))
STEP = 1e-2  # of an error, so small that the divergence is of second order


def predict(
    opened: Opened,
    folder: Path,
    formats: list[str],
    *,
    only: str = "",
    scored: int = 48,
    rounding: Rounding = "nearest",
    seed: int = 0,
    looked_up: Sequence[str] = (),
) -> Losses:
    model = opened.layered()
    names = [name for index in range(len(model.layers) + 1) for name in model.matrices(index)]
    names += [name for index in range(len(model.layers)) for name in experts_of(model, index)]
    wanted = {name: formats for name in names if only in name}
    random = torch.Generator().manual_seed(seed)
    found = Sensitivity(model, opened.sources, wanted, rounding, RoundingStore(folder), random, looked_up)
    done: list[int] = []
    losses = found.run(WINDOWS, scored, done.append)
    assert sum(done) == pytest.approx(found.work(WINDOWS, scored), rel=0.1)
    assert list(folder.iterdir()) == []
    return losses


def experts_of(model: LayeredModel, index: int) -> list[str]:
    """The two tall matrices of a layer's experts, by parameter name."""
    return [name for layer in model.experts(index).values() for name in layer.parameters.values()]


class Moved:
    """The whole model in float64, with one matrix moved; the head is not tied here."""

    def __init__(self, opened: Opened) -> None:
        self.model: PreTrainedModel = copy.deepcopy(opened.oracle).double()
        self.model.config._experts_implementation = "eager"  # the default one has no float64
        head = self.model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        self.head = opened.layered().matrices(opened.oracle.config.num_hidden_layers)
        self.exact = self.logs()

    def logs(self) -> Tensor:
        with torch.no_grad():
            return torch.log_softmax(self.model(input_ids=torch.from_numpy(WINDOWS)).logits, dim=-1)

    def module(self, name: str) -> torch.nn.Module:
        if name in self.head:
            return self.model.get_output_embeddings()
        return self.model.get_submodule(name.removesuffix(".weight"))

    def error(self, name: str, element: str) -> Tensor:
        """What rounding to nearest does to the matrix, as the checkpoint has it."""
        module = self.module(name)
        weight = module.weight.detach().float().numpy()
        weight = np.ascontiguousarray(weight.T if isinstance(module, Conv1D) else weight)
        error = torch.from_numpy(dequantize(*quantize(weight, element), element) - weight).double()
        return error.T if isinstance(module, Conv1D) else error

    def divergence(self, name: str, error: Tensor) -> float:
        """Nats a token from the exact model to the moved one."""
        weight = self.module(name).weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight += error
            moved = self.logs()
            weight.copy_(before)
        return float((self.exact.exp() * (self.exact - moved)).sum(-1).mean())


@pytest.mark.parametrize(
    ("name", "matrix"),
    [("llama", "layers.0.self_attn.k_proj"), ("gpt2", "h.1.mlp.c_proj"), ("gemma2", "0.mlp.down_proj")],
)
def test_losses_are_those_of_every_row_moved_by_itself(
    name: str, matrix: str, open_tiny: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "ROWS", 24)  # so that gradients are made in several pieces
    opened = open_tiny(name)
    losses, moved = predict(opened, tmp_path, ["mxfp4_e2m1"], only=matrix), Moved(opened)
    ((parameter, found),) = losses.items()
    error = STEP * moved.error(parameter, "e2m1")
    across = 1 if isinstance(moved.module(parameter), Conv1D) else 0
    alone = 0.0
    for row in range(error.shape[across]):
        one = torch.zeros_like(error)
        one.select(across, row).copy_(error.select(across, row))
        alone += moved.divergence(parameter, one) / STEP**2
    assert found["mxfp4_e2m1"] == pytest.approx(alone, rel=0.15)


@pytest.mark.parametrize("name", ["llama-tied", "gemma2", "granite"])
def test_the_loss_of_the_head_is_exact_to_second_order(
    name: str, open_tiny: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "_LOGITS", 5 * 120)  # so that logits are made a few tokens at a time
    opened = open_tiny(name)
    moved = Moved(opened)
    (head,) = moved.head
    losses = predict(opened, tmp_path, ["mxfp4_e2m1"], only=head)
    expected = moved.divergence(head, STEP * moved.error(head, "e2m1")) / STEP**2
    assert losses[head]["mxfp4_e2m1"] == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("name", ["llama-tied", "gemma2", "gpt2"])
def test_the_loss_of_a_looked_up_table_equals_that_of_its_rows_moved_one_by_one(
    name: str, open_tiny: Open, tmp_path: Path
) -> None:
    """gemma2 scales what it looks up, gpt2 adds positions."""
    opened = open_tiny(name)
    moved = Moved(opened)
    (head,) = moved.head
    alone = predict(opened, tmp_path, ["mxfp4_e2m1"], only=head)[head]["mxfp4_e2m1"]
    both = predict(opened, tmp_path, ["mxfp4_e2m1"], only=head, looked_up=[head])[head]["mxfp4_e2m1"]
    error = STEP * moved.error(head, "e2m1")
    assert moved.model.get_input_embeddings() is moved.model.get_submodule(head.removesuffix(".weight"))
    moved.head = {}  # from here on the embedding is what moves
    expected = 0.0
    for row in np.unique(WINDOWS):
        one = torch.zeros_like(error)
        one[row] = error[row]
        expected += moved.divergence(head, one) / STEP**2
    assert both - alone == pytest.approx(expected, rel=0.15)


def test_careful_rounding_of_a_table_that_is_looked_up(open_tiny: Open, tmp_path: Path) -> None:
    opened = open_tiny("llama-tied")
    (head,) = opened.layered().matrices(opened.oracle.config.num_hidden_layers)
    formats = ["mxfp4_e2m1", FP16_TILES]
    alone, both = (
        predict(opened, tmp_path, formats, only=head, scored=12, rounding="gptq", looked_up=names)[head]
        for names in ([], [head])
    )
    assert both["mxfp4_e2m1"] > alone["mxfp4_e2m1"]
    assert both[FP16_TILES] == 0


def test_matrices_and_formats_are_ranked_as_they_are(open_tiny: Open, tmp_path: Path) -> None:
    opened = open_tiny("llama")
    losses, moved = predict(opened, tmp_path, FORMATS), Moved(opened)
    pairs = [(name, form) for name in losses for form in ELEMENTS.values()]
    predicted = [losses[name][form.name] for name, form in pairs]
    happened = [moved.divergence(name, moved.error(name, str(form.element))) for name, form in pairs]
    assert spearmanr(predicted, happened)[0] > 0.95
    assert sum(predicted) == pytest.approx(sum(happened), rel=0.3)


def test_careful_rounding_is_predicted_to_lose_less(open_tiny: Open, tmp_path: Path) -> None:
    opened = open_tiny("llama")
    nearest = predict(opened, tmp_path, ["mxfp4_e2m1", FP16_TILES], scored=12)
    careful = predict(opened, tmp_path, ["mxfp4_e2m1", FP16_TILES], scored=12, rounding="gptq")
    assert {name: kinds[FP16_TILES] for name, kinds in nearest.items()} == dict.fromkeys(nearest, 0.0)
    assert sum(kinds["mxfp4_e2m1"] for kinds in careful.values()) < 0.8 * sum(
        kinds["mxfp4_e2m1"] for kinds in nearest.values()
    )


def test_the_same_seed_gives_the_same_losses(open_tiny: Open, tmp_path: Path) -> None:
    opened = open_tiny("gpt2")
    one, same, other = (predict(opened, tmp_path, ["mxint8"], scored=4, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


class MovedExperts(Moved):
    """As Moved, with matrices of a layer's experts, which rounding sees as one tall matrix."""

    def experts(self, name: str) -> tuple[torch.nn.Parameter, bool]:
        """The parameter, and whether its last axis is that of the rows."""
        path = name.rpartition(".")[0]
        return self.model.get_parameter(name), bool(self.model.get_submodule(path).is_transposed)

    def error(self, name: str, element: str) -> Tensor:
        weight, transposed = self.experts(name)
        tall = (weight.transpose(1, 2) if transposed else weight).detach().float().numpy()
        shape, tall = tall.shape, np.ascontiguousarray(tall.reshape(-1, tall.shape[2]))
        error = torch.from_numpy(dequantize(*quantize(tall, element), element) - tall).double().reshape(shape)
        return error.transpose(1, 2) if transposed else error

    def divergence_of(self, errors: dict[str, Tensor]) -> float:
        """Nats a token from the exact model to the one with all these matrices moved."""
        before = {name: self.experts(name)[0].detach().clone() for name in errors}
        with torch.no_grad():
            for name, error in errors.items():
                self.experts(name)[0].add_(error)
            moved = self.logs()
            for name, weight in before.items():
                self.experts(name)[0].copy_(weight)
        return float((self.exact.exp() * (self.exact - moved)).sum(-1).mean())


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("qwen3_moe", "experts.gate_up_proj"),
        ("qwen3_moe", "experts.down_proj"),
        ("gpt_oss", "layers.1.mlp.experts.down_proj"),
    ],
)
def test_losses_of_experts_are_those_of_every_row_moved_by_itself(
    name: str, matrix: str, open_tiny: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "ROWS", 24)
    opened = open_tiny(name)
    losses, moved = predict(opened, tmp_path, ["mxfp4_e2m1"], only=matrix), MovedExperts(opened)
    ((parameter, found),) = losses.items()
    error = STEP * moved.error(parameter, "e2m1")
    across = 2 if moved.experts(parameter)[1] else 1
    alone = 0.0
    for expert in range(len(error)):
        for row in range(error.shape[across]):
            one = torch.zeros_like(error)
            one[expert].select(across - 1, row).copy_(error[expert].select(across - 1, row))
            alone += moved.divergence_of({parameter: one}) / STEP**2
    assert found["mxfp4_e2m1"] == pytest.approx(alone, rel=0.15)


@pytest.mark.parametrize("name", ["olmoe", "qwen3_moe", "mixtral", "granitemoe", "qwen2_moe", "gpt_oss", "glm4_moe"])
def test_the_loss_of_a_layers_experts_is_what_happens(name: str, open_tiny: Open, tmp_path: Path) -> None:
    """Only the last layer's, so that no router chooses otherwise."""
    opened = open_tiny(name)
    moved, model = MovedExperts(opened), opened.layered()
    names = experts_of(model, len(model.layers) - 1)
    losses = predict(opened, tmp_path, FORMATS, only=names[0].rpartition(".")[0])
    predicted = {kind: sum(losses[each][kind] for each in names) for kind in FORMATS}
    happened = {
        form.name: moved.divergence_of({each: moved.error(each, str(form.element)) for each in names})
        for form in ELEMENTS.values()
    }
    assert sorted(FORMATS, key=predicted.__getitem__) == sorted(FORMATS, key=happened.__getitem__)
    assert predicted["mxfp6_e2m3"] == pytest.approx(happened["mxfp6_e2m3"], rel=0.1)


def test_experts_that_are_rounded_with_care_are_predicted_to_lose_less(open_tiny: Open, tmp_path: Path) -> None:
    opened = open_tiny("qwen3_moe")
    nearest, careful = (
        predict(opened, tmp_path, ["mxfp4_e2m1", FP16_TILES], only=".experts.", scored=12, rounding=rounding)
        for rounding in ("nearest", "gptq")
    )
    assert len(nearest) == 2
    for name, kinds in careful.items():
        assert kinds[FP16_TILES] == 0
        assert 0 < kinds["mxfp4_e2m1"] < 0.95 * nearest[name]["mxfp4_e2m1"]
