"""Experts of a checkpoint as tall matrices, in whatever form they are stored; transformers is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxspec.compile.check.reference import load_reference
from mxspec.compile.checkpoint.checkpoint import Checkpoint, require_complete
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.names import resolve_names
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import read_whole
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 120,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
_MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
}
_DOWN_PROJ = "model.layers.0.mlp.experts.down_proj"
_OF_EXPERT = "model.layers.0.mlp.experts.{}.{}_proj.weight"


def _model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **_SIZES, **_MIXTURES[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model.eval()


@pytest.fixture
def olmoe(tmp_path: Path) -> Path:
    """A checkpoint with a matrix for each expert."""
    _model("olmoe").save_pretrained(tmp_path)
    return tmp_path


def _change(folder: Path, change: dict[str, np.ndarray | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | change
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / "model.safetensors")


def _publish(folder: Path, stored: dict[str, tuple[np.ndarray, np.ndarray]], **settings: Any) -> None:
    """Blocks and scales in the place of parameters, as gpt-oss has them."""
    for name, (blocks, scales) in stored.items():
        _change(folder, {name: None, f"{name}_blocks": blocks, f"{name}_scales": scales})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", **settings}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", _MIXTURES)
@pytest.mark.parametrize("fused", [False, True])
def test_reads_experts_as_transformers_stores_them(name: str, fused: bool, tmp_path: Path) -> None:
    model = _model(name)
    model.save_pretrained(tmp_path, save_original_format=not fused)
    with Checkpoint(tmp_path) as checkpoint:
        require_complete(checkpoint)
        matrices = expert_matrices(checkpoint.named)
        assert len(matrices) == 2
        tensor_of = resolve_names(checkpoint.named, checkpoint.tensors, matrices).tensor_of
        for parameter, matrix in matrices.items():
            tensor = checkpoint.tensors[tensor_of[parameter]]
            assert tensor.shape == matrix.shape
            np.testing.assert_array_equal(
                matrix.as_parameter(read_whole(tensor)), model.get_parameter(parameter).detach().numpy()
            )
            some = tensor.read_rows(matrix.rows - 3, matrix.rows + 5)  # of two experts
            np.testing.assert_array_equal(some, read_whole(tensor)[matrix.rows - 3 : matrix.rows + 5])
        loaded = load_reference(checkpoint, checkpoint.config)
    for parameter, value in model.named_parameters():
        torch.testing.assert_close(loaded.get_parameter(parameter), value, rtol=0, atol=0)


def test_reads_gpt_oss_as_it_is_published(tmp_path: Path) -> None:
    model, random = _model("gpt_oss"), np.random.default_rng(0)
    model.save_pretrained(tmp_path)
    stored, wanted = {}, {}
    for parameter in expert_matrices(model):
        experts, k, rows = model.get_parameter(parameter).shape
        blocks = random.integers(0, 256, (experts, rows, k // 32, 16), np.uint8)
        scales = random.integers(110, 130, (experts, rows, k // 32), np.uint8)
        stored[parameter] = blocks, scales
        wanted[parameter] = convert_moe_packed_tensors(
            torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
        )
    _publish(tmp_path, stored, modules_to_not_convert=["lm_head"])

    with Checkpoint(tmp_path) as checkpoint:
        require_complete(checkpoint)
        for parameter, matrix in expert_matrices(checkpoint.named).items():
            tensor = checkpoint.tensors[parameter]
            assert isinstance(tensor, MxTensor)
            assert tensor.format == "mxfp4_e2m1"
            np.testing.assert_array_equal(matrix.as_parameter(read_whole(tensor)), wanted[parameter].numpy())
        loaded = load_reference(checkpoint, checkpoint.config)
    for parameter, value in wanted.items():
        torch.testing.assert_close(loaded.get_parameter(parameter), value, rtol=0, atol=0)


_DOWN = np.zeros((64, 96), np.float32)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (_OF_EXPERT.format(2, "up"), None, r"no tensor for expert 2 of .*mlp\.experts\.gate_up_proj"),
        (_OF_EXPERT.format(4, "down"), _DOWN, r"experts\.4\.down_proj.*of expert 4.*config\.json says 4 experts"),
        (f"language_model.{_OF_EXPERT.format(1, 'down')}", _DOWN, "are both of expert 1"),
        (_OF_EXPERT.format(1, "gate"), _DOWN[:, :64], r"experts\.1\.gate_proj.*shape \[64, 64\], expected \[96, 64\]"),
    ],
)
def test_refuses_other_experts_than_config_says(olmoe: Path, name: str, value: np.ndarray | None, says: str) -> None:
    _change(olmoe, {name: None if value is None else np.ascontiguousarray(value)})
    with pytest.raises(CheckpointError, match=says):
        Checkpoint(olmoe)


def test_refuses_more_chosen_experts_than_there_are(olmoe: Path) -> None:
    config = json.loads((olmoe / "config.json").read_text())
    (olmoe / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 5}))
    with Checkpoint(olmoe) as checkpoint, pytest.raises(CheckpointError, match=r"5 experts are chosen .* at most 4"):
        require_complete(checkpoint)


def test_refuses_blocks_of_another_shape(tmp_path: Path) -> None:
    _model("gpt_oss").save_pretrained(tmp_path)
    _publish(tmp_path, {_DOWN_PROJ: (np.zeros((4, 64, 3, 8), np.uint8), np.zeros((4, 64, 3), np.uint8))})
    with pytest.raises(CheckpointError, match=r"down_proj_blocks.*\[4, 64, 3, 8\].*rows, blocks, 16\]"):
        Checkpoint(tmp_path)


def test_refuses_scales_of_nan(tmp_path: Path) -> None:
    codes, scales = np.zeros((4, 64, 3, 16), np.uint8), np.full((4, 64, 3), 127, np.uint8)
    scales[1, 5, 2] = 255
    _model("gpt_oss").save_pretrained(tmp_path)
    _publish(tmp_path, {_DOWN_PROJ: (codes, scales)})
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(CheckpointError, match="row 69, block 2"):
        read_whole(checkpoint.tensors[_DOWN_PROJ])


def test_refuses_mxfp4_with_unknown_settings(tmp_path: Path) -> None:
    _model("gpt_oss").save_pretrained(tmp_path)
    _publish(tmp_path, {}, group_size=16)
    with pytest.raises(UnsupportedModelError, match="group_size"):
        Checkpoint(tmp_path)
