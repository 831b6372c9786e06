"""Numbers that a checkpoint holds as buffers are those that the compiled model computes with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from mxspec.compile.check.own_weights import compare_own_weights
from mxspec.compile.check.readings import random_texts
from mxspec.compile.checkpoint.buffers import find_buffers, load_buffers, stored_buffers
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import name_parameters
from mxspec.compile.checkpoint.tensors.weight_files import SAFETENSORS
from mxspec.compile.planning import plan as planning
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.trace.skeleton import build_skeleton
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.formats.errors import CheckpointError
from tests.compile.conftest import LIGHT
from tests.compile.outlined import outlined, written

BETA = "model.layers.0.mlp.act_fn.beta"


@pytest.fixture(scope="module")
def apertus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bfloat16 checkpoint whose activation functions have other constants than its configuration gives them."""
    model_type, settings = LIGHT["apertus"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        for name, buffer in stored_buffers(model).items():
            buffer.fill_(0.8 if name.endswith("beta") else -0.01)
    folder = tmp_path_factory.mktemp("apertus")
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def error_of(folder: Path, output: Path) -> float:
    with Checkpoint(folder) as checkpoint:
        entry = written(checkpoint, output, 96, "float32")
        assert not [name for name in entry.ignored if "act_fn" in name]
        return compare_own_weights(output, entry, checkpoint, random_texts(120))[0].stored.error


def test_they_equal_what_transformers_loads(apertus: Path, tmp_path: Path) -> None:
    assert error_of(apertus, tmp_path) < 2e-6


def test_without_them_it_would_be_another_model(apertus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "find_buffers", lambda model, tensors: {})
    with Checkpoint(apertus) as checkpoint:
        entry = written(checkpoint, tmp_path, 96, "float32")
        assert compare_own_weights(tmp_path, entry, checkpoint, random_texts(120))[0].stored.error > 1e-2


def test_calibration_runs_with_them(apertus: Path) -> None:
    with Checkpoint(apertus) as checkpoint:
        sources = plan_model(outlined(checkpoint)).sources
        layer = LayeredModel(checkpoint.config, sources).layers[0]
    assert float(layer.get_buffer("mlp.act_fn.beta")) == float(torch.tensor(0.8, dtype=torch.bfloat16))


def test_tables_are_not_among_the_buffers() -> None:
    """GPT-J's positions are in its checkpoints, too; they are computed alike."""
    model_type, settings = LIGHT["gptj"]
    assert stored_buffers(name_parameters(AutoConfig.for_model(model_type, **settings))) == {}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.ones(2), rf"'{BETA}' of model.safetensors has shape \[2\], expected \[\] for {BETA}"),
        (torch.tensor(np.inf), f"'{BETA}' of model.safetensors holds NaN or infinity"),
    ],
)
def test_meaningless_combinations_are_refused(value: torch.Tensor, says: str, apertus: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((apertus / "config.json").read_bytes())
    save_file(load_file(apertus / SAFETENSORS.single) | {BETA: value}, tmp_path / SAFETENSORS.single)
    with Checkpoint(tmp_path) as checkpoint:
        model = build_skeleton(checkpoint.config, None)
        sources = find_buffers(model, checkpoint.tensors)
        with pytest.raises(CheckpointError, match=says):
            load_buffers(model, sources)
