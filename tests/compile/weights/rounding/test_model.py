"""Rounding whole tiny models: the logits' error falls, layouts and ties are followed, a killed run goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.experts import expert_matrices, experts_modules
from mxspec.compile.weights.rounding.experts import ExpertsInputs, LayerExperts
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.model import ModelRounder, rounding_work
from mxspec.compile.weights.rounding.moments import Moments
from mxspec.compile.weights.rounding.store import RoundedMatrix, RoundingStore
from mxspec.compile.weights.rounding.text import CalibrationText
from mxspec.formats.tiles import dequantize, quantize, unpack_values
from tests.compile.weights.rounding.conftest import Opened

FORMAT = "mxfp6_e3m2"
MIXTURES = ("qwen3_moe", "gpt_oss")  # the second stores its experts transposed
Open = Callable[[str], Opened]


def round_all(
    opened: Opened,
    text: CalibrationText,
    folder: Path,
    advance: Callable[[int], object] = id,
    only: Iterable[str] | None = None,
) -> dict[str, RoundedMatrix]:
    model = opened.layered()
    names = [name for index in range(len(model.layers) + 1) for name in model.matrices(index)]
    names = list(only) if only is not None else [*names, *expert_matrices(opened.oracle)]
    rounder = ModelRounder(model, opened.sources, dict.fromkeys(names, FORMAT), RoundingStore(folder))
    return rounder.run(text, advance)


def stored(matrix: RoundedMatrix, n: int, k: int) -> NDArray[np.float32]:
    return unpack_values(np.concatenate(list(matrix.pieces())), FORMAT, n, k)


def with_weights(
    model: PreTrainedModel, replace: Callable[[str, NDArray[np.float32]], NDArray[np.float32]]
) -> PreTrainedModel:
    """The model's copy with other matrices [n, k] inside its layers, by parameter name; tall ones of experts."""
    changed = copy.deepcopy(model)
    for name, matrix in expert_matrices(changed).items():
        weight = changed.get_parameter(name).detach().numpy()
        tall = (weight.transpose(0, 2, 1) if matrix.transposed else weight).reshape(matrix.shape)
        changed.get_parameter(name).data = torch.from_numpy(matrix.as_parameter(replace(name, tall)))
    for path, module in changed.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not changed.get_output_embeddings():
            transposed = isinstance(module, Conv1D)
            weight = module.weight.detach().numpy()
            matrix = np.ascontiguousarray(weight.T if transposed else weight)
            values = replace(f"{path}.weight", matrix)
            module.weight.data = torch.from_numpy(np.ascontiguousarray(values.T if transposed else values))
    return changed


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "phi", "llama-ragged", "opt", *MIXTURES])
def test_the_error_of_the_logits_falls(
    name: str, open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxspec.compile.weights.rounding.matrix.PIECE_BYTES", 1)  # several pieces of a matrix
    opened = open_tiny(name)
    rounded = round_all(opened, text, tmp_path)
    assert [parameter for parameter, matrix in rounded.items() if matrix.fallback] == []

    ids = torch.from_numpy(text.windows)
    compensated = with_weights(opened.oracle, lambda parameter, values: stored(rounded[parameter], *values.shape))
    nearest = with_weights(opened.oracle, lambda parameter, values: dequantize(*quantize(values, "e3m2"), "e3m2"))
    with torch.no_grad():
        exact, ours, theirs = (model(input_ids=ids).logits for model in (opened.oracle, compensated, nearest))
    assert torch.norm(ours - exact) < 0.8 * torch.norm(theirs - exact)


@pytest.mark.parametrize("name", MIXTURES)
def test_each_expert_is_rounded_by_the_tokens_that_chose_it(
    name: str, open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments of the tokens of a few experts are compared with those that transformers' own forward gives them."""
    monkeypatch.setattr("mxspec.compile.weights.rounding.experts.FEW", 0)
    opened = open_tiny(name)
    seen: list[tuple[int, NDArray[np.float32]]] = []

    def noted(experts: LayerExperts, inputs: ExpertsInputs, *_: Any) -> dict[str, RoundedMatrix]:
        for expert in range(8):
            tokens, others = inputs.tokens_of(expert)
            assert not others
            seen.append((expert, inputs.exact[tokens]))
        return {}

    monkeypatch.setattr("mxspec.compile.weights.rounding.model.round_experts", noted)
    round_all(opened, text, tmp_path, only=expert_matrices(opened.oracle))

    expected: list[NDArray[np.float32]] = []

    def note(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        hidden, chosen = arguments[:2]
        expected.extend(hidden[(chosen == expert).any(dim=1)].numpy() for expert in range(8))

    for _, module in experts_modules(opened.oracle):
        module.register_forward_pre_hook(note)
    with torch.no_grad():
        opened.oracle(input_ids=torch.from_numpy(text.windows))
    assert len(seen) == len(expected) > 0
    for (_, got), wanted in zip(seen, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_an_expert_that_few_tokens_chose_takes_others_of_its_layer() -> None:
    chosen = np.array([[0, 1]] * 900 + [[0, 2]] * 100)
    rows = np.zeros((1000, 4), np.float32)
    inputs = ExpertsInputs(rows, rows, chosen)
    assert [len(inputs.tokens_of(expert)[0]) for expert in (0, 1)] == [1000, 900]
    tokens, others = inputs.tokens_of(2)
    assert others
    assert set(range(900, 1000)) < set(tokens)
    assert 256 <= len(tokens) < 356 + 1
    assert len(inputs.tokens_of(3)[0]) == 256


def test_statistics_are_of_the_checkpoint(open_tiny: Open, text: CalibrationText, tmp_path: Path) -> None:
    opened = open_tiny("llama-tied")
    rounded = round_all(opened, text, tmp_path)
    head = rounded["model.embed_tokens.weight"]  # the head, by its first name
    exact = opened.oracle.get_output_embeddings().weight.detach().numpy()
    values = stored(head, *exact.shape)
    error = np.linalg.norm(values - exact) / np.linalg.norm(exact)
    assert head.statistics.relative_error == pytest.approx(error, rel=1e-5)
    assert 0.01 < error < 0.2


def test_each_group_of_a_layer_reads_what_the_rounded_ones_before_it_make(
    open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from outside: transformers' model with the rounded matrices gives what each group's moments are of."""
    opened = open_tiny("llama")
    rounded_inputs: list[Tensor] = []  # window by window
    add = Moments.add

    def noted(self: Moments, inputs: Tensor, exact: Tensor | None = None) -> None:
        rounded_inputs.append(inputs.clone())
        add(self, inputs, exact)

    monkeypatch.setattr(Moments, "add", noted)
    rounded = round_all(opened, text, tmp_path)
    changed = with_weights(opened.oracle, lambda name, values: stored(rounded[name], *values.shape))
    expected: list[Tensor] = []
    for layer in changed.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.down_proj):
            part.register_forward_pre_hook(lambda _, arguments: expected.append(arguments[0].clone()))
    with torch.no_grad():
        changed(input_ids=torch.from_numpy(text.windows))
    count = len(text.windows)
    of_groups = [torch.stack(rounded_inputs[i * count : (i + 1) * count]) for i in range(len(expected))]
    for ours, theirs in zip(of_groups, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("windows", [1, 4])
def test_windows_run_in_as_many_batches_as_memory_asks_for(
    windows: int, open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of moments in another order move a rounding here and there, no more."""
    opened = open_tiny("llama")
    whole = round_all(opened, text, tmp_path / "whole")
    window = 16 * text.windows.shape[1] * 96
    monkeypatch.setattr("mxspec.compile.weights.rounding.model.PASS_BYTES", 4 * 96**2 + windows * window)
    parts = round_all(opened, text, tmp_path / "parts")
    for name, matrix in whole.items():
        one, other = (np.concatenate(list(each[name].pieces())) for each in (whole, parts))
        assert np.mean(one != other) < 0.02
        assert parts[name].fallback is None
        assert parts[name].statistics.relative_error == pytest.approx(matrix.statistics.relative_error, rel=0.01)


@pytest.mark.parametrize(("width", "inner", "most"), [(576, 1536, 26), (2048, 5632, 5), (4096, 11008, 1)])
def test_a_batch_leaves_room_for_the_moments(width: int, inner: int, most: int) -> None:
    """SmolLM2-135M, TinyLlama and Llama-2-7B: the larger the moments, the fewer windows run through a layer at once."""

    class OneLayer:
        def matrices(self, index: int) -> dict[str, torch.nn.Linear]:
            return {"down": torch.nn.Linear(inner, width, bias=False, device="meta")}

    inputs = np.broadcast_to(np.float32(0), (64, 1024, width))
    rounder = ModelRounder(OneLayer(), {}, {}, None)  # type: ignore[arg-type]
    batches = rounder._batches(0, inputs)
    assert [len(inputs[batch]) for batch in batches[:-1]] == [most] * (len(batches) - 1)


def test_inputs_that_cannot_be_factored_fall_back_to_nearest(
    open_tiny: Open, text: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_tiny("llama")
    run = LayeredModel.run

    def run_with_zeros(self: LayeredModel, index: int, hidden: Tensor, on_input: Any = None, *rest: Any) -> Tensor:
        def told(name: str, inputs: Tensor) -> bool | None:
            assert callable(on_input)
            told_so: bool | None = on_input(name, torch.zeros_like(inputs) if "down_proj" in name else inputs)
            return told_so

        return run(self, index, hidden, told if on_input else None, *rest)

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

    def killed(self: LayeredModel, index: int, hidden: Tensor, *rest: Any) -> Tensor:
        calls[0] += 1
        if index == 1 and calls[0] == 4:  # the first layer ran in both streams, the second in the exact one
            raise KilledError
        return run(self, index, hidden, *rest)

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
    work = rounding_work(model, opened.sources, dict.fromkeys(names, FORMAT), text.tokens)
    assert sum(done) == pytest.approx(work, rel=0.01)
