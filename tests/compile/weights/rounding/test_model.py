"""Rounding whole tiny models: the logits' error falls, layouts and ties are followed, a killed run goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.model import ModelRounder
from mxspec.compile.weights.rounding.rounded import RoundedMatrix
from mxspec.compile.weights.rounding.store import RoundingStore
from mxspec.compile.weights.rounding.text import CalibrationText
from mxspec.formats.mx import dequantize, quantize
from mxspec.formats.tiles import unpack_values
from tests.compile.weights.rounding.conftest import Opened

FORMAT = "mxfp6_e3m2"
Open = Callable[[str], Opened]


def round_all(
    opened: Opened, text: CalibrationText, folder: Path, advance: Callable[[int], object] = id
) -> dict[str, RoundedMatrix]:
    model = opened.layered()
    names = [name for index in range(len(model.layers) + 1) for name in model.matrices(index)]
    rounder = ModelRounder(model, opened.sources, dict.fromkeys(names, FORMAT), RoundingStore(folder))
    return rounder.run(text, advance)


def stored(matrix: RoundedMatrix, n: int, k: int) -> NDArray[np.float32]:
    return unpack_values(np.concatenate(list(matrix.pieces())), FORMAT, n, k)


def with_weights(
    model: PreTrainedModel, replace: Callable[[str, NDArray[np.float32]], NDArray[np.float32]]
) -> PreTrainedModel:
    """The model's copy with other matrices [n, k] inside its layers, by parameter name."""
    changed = copy.deepcopy(model)
    for path, module in changed.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not changed.get_output_embeddings():
            transposed = isinstance(module, Conv1D)
            weight = module.weight.detach().numpy()
            matrix = np.ascontiguousarray(weight.T if transposed else weight)
            values = replace(f"{path}.weight", matrix)
            module.weight.data = torch.from_numpy(np.ascontiguousarray(values.T if transposed else values))
    return changed


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "phi", "llama-ragged", "opt"])
def test_the_error_of_the_logits_falls(
    name: str, open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mxspec.compile.weights.rounding.matrix.PIECE_BYTES", 1
    )  # so that matrices are rounded in several pieces
    opened = open_tiny(name)
    rounded = round_all(opened, text, tmp_path)
    assert [parameter for parameter, matrix in rounded.items() if matrix.fallback] == []

    ids = torch.from_numpy(text.windows)
    compensated = with_weights(opened.oracle, lambda parameter, values: stored(rounded[parameter], *values.shape))
    nearest = with_weights(opened.oracle, lambda parameter, values: dequantize(*quantize(values, "e3m2"), "e3m2"))
    with torch.no_grad():
        exact, ours, theirs = (model(input_ids=ids).logits for model in (opened.oracle, compensated, nearest))
    assert torch.norm(ours - exact) < 0.8 * torch.norm(theirs - exact)


def test_statistics_are_of_the_checkpoint(open_tiny: Open, text: CalibrationText, tmp_path: Path) -> None:
    opened = open_tiny("llama-tied")
    rounded = round_all(opened, text, tmp_path)
    head = rounded["model.embed_tokens.weight"]  # the head, by its first name
    exact = opened.oracle.get_output_embeddings().weight.detach().numpy()
    values = stored(head, *exact.shape)
    error = np.linalg.norm(values - exact) / np.linalg.norm(exact)
    assert head.statistics.relative_error == pytest.approx(error, rel=1e-5)
    assert 0.01 < error < 0.2


def test_projections_of_one_input_share_their_moments(open_tiny: Open, text: CalibrationText, tmp_path: Path) -> None:
    opened = open_tiny("llama")
    model = opened.layered()
    names = list(model.matrices(0))
    rounder = ModelRounder(model, opened.sources, dict.fromkeys(names, FORMAT), RoundingStore(tmp_path))
    hidden = np.concatenate([values.numpy() for values in model.embed(text.windows)])
    with model.loaded(0):
        groups = rounder._moments(0, hidden, model.matrices(0), lambda: None).groups()
    assert [[name.split(".")[-2] for name in group] for group in groups.values()] == [
        ["q_proj", "k_proj", "v_proj"],
        ["o_proj"],
        ["gate_proj", "up_proj"],
        ["down_proj"],
    ]


def test_wide_matrices_come_after_the_others_of_their_layer(
    open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they alone are rounded their bytes are the same; else they see what rounding made of the others."""
    opened = open_tiny("llama")
    model = opened.layered()
    every = [name for index in range(len(model.layers)) for name in model.matrices(index)]
    wide = [name for name in every if "down_proj" in name]  # 96 columns, the others 64

    def rounded(names: list[str], folder: str, most: int) -> list[NDArray[np.uint8]]:
        monkeypatch.setattr("mxspec.compile.weights.rounding.model.WIDE_BYTES", most)
        rounder = ModelRounder(
            opened.layered(), opened.sources, dict.fromkeys(names, FORMAT), RoundingStore(tmp_path / folder)
        )
        done = rounder.run(text, id)
        return [np.concatenate(list(done[name].pieces())) for name in wide]

    alone, apart = rounded(wide, "alone", 1 << 30), rounded(wide, "apart", 1 << 15)
    assert all(np.array_equal(a, b) for a, b in zip(alone, apart, strict=True))
    together, after = rounded(every, "together", 1 << 30), rounded(every, "after", 1 << 15)
    assert not np.array_equal(together[0], after[0])


def test_inputs_that_cannot_be_factored_fall_back_to_nearest(
    open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_tiny("llama")
    run = LayeredModel.run

    def run_with_zeros(self: LayeredModel, index: int, hidden: Tensor, on_input: object = None) -> Tensor:
        def told(name: str, inputs: Tensor) -> None:
            assert callable(on_input)
            on_input(name, torch.zeros_like(inputs) if "down_proj" in name else inputs)

        return run(self, index, hidden, told if on_input else None)

    monkeypatch.setattr(LayeredModel, "run", run_with_zeros)
    rounded = round_all(opened, text, tmp_path)
    fallen = {name: matrix for name, matrix in rounded.items() if matrix.fallback}
    assert [name.split(".")[-2] for name in fallen] == ["down_proj"] * 2
    for name, matrix in fallen.items():
        assert matrix.fallback == "the inputs are all zero"
        values = opened.oracle.get_parameter(name).detach().numpy()
        np.testing.assert_array_equal(
            stored(matrix, *values.shape), dequantize(*quantize(values.copy(), "e3m2"), "e3m2")
        )


def test_a_killed_run_resumes_at_its_layer_with_the_same_result(
    open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_tiny("llama")
    whole = round_all(opened, text, tmp_path / "whole")

    class KilledError(Exception):
        pass

    run, calls = LayeredModel.run, [0]

    def killed(self: LayeredModel, index: int, hidden: Tensor, on_input: object = None) -> Tensor:
        calls[0] += 1
        if index == 1 and calls[0] > len(text.windows) * 3 + 2:  # in the middle of writing the second layer's outputs
            raise KilledError
        return run(self, index, hidden, on_input)  # type: ignore[arg-type]

    monkeypatch.setattr(LayeredModel, "run", killed)
    with pytest.raises(KilledError):
        round_all(opened, text, tmp_path / "cut")
    monkeypatch.undo()
    ran: list[int] = []
    monkeypatch.setattr(LayeredModel, "run", lambda self, index, *rest: (ran.append(index), run(self, index, *rest))[1])
    done: list[int] = []
    again = round_all(opened, text, tmp_path / "cut", done.append)
    assert 0 not in ran
    assert again.keys() == whole.keys()
    for name, matrix in whole.items():
        assert b"".join(map(bytes, matrix.pieces())) == b"".join(map(bytes, again[name].pieces()))
        assert matrix.statistics == again[name].statistics


def test_work_adds_up(open_tiny: Open, text: CalibrationText, tmp_path: Path) -> None:
    opened, done = open_tiny("gpt2"), list[int]()
    round_all(opened, text, tmp_path, done.append)
    model = opened.layered()
    names = [name for index in range(len(model.layers) + 1) for name in model.matrices(index)]
    rounder = ModelRounder(model, opened.sources, dict.fromkeys(names, FORMAT), RoundingStore(tmp_path))
    assert sum(done) == pytest.approx(rounder.work(text.tokens), rel=0.01)
