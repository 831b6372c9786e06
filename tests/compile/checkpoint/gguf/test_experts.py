"""The experts of GGUF files: any rows of them, blocks that stay what they are, and files that lack something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import resolve_names
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import Tensor
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.tiles import dequantize, unpack_values
from mxspec.formats.weight_format import packed_shape
from tests.compile.checkpoint.gguf.conftest import tensors_of
from tests.compile.checkpoint.gguf.test_families import EXPERTS, GPT_OSS, LOCAL
from tests.compile.commands.test_speccompile import speccompile

Made = Callable[..., tuple[PreTrainedModel, Path]]
MODELS = {"olmoe": EXPERTS, "gpt_oss": {**LOCAL, **GPT_OSS}}
PATH = "model.layers.1.mlp.experts"
Q8_0, MXFP4 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.MXFP4


def parts_of(model: PreTrainedModel, arch: str, kind: gguf.GGMLQuantizationType) -> dict[str, np.ndarray[Any, Any]]:
    """What the package makes of the experts' matrices of the second layer, float32[experts, rows, k]."""
    names = ("gate", "up", "down")
    tensors = {name: tensors_of(model, arch)[f"blk.1.ffn_{name}_exps.weight"] for name in names}
    return {name: gguf.quants.dequantize(gguf.quants.quantize(v, kind), kind) for name, v in tensors.items()}


def expected_of(parts: dict[str, np.ndarray[Any, Any]], arch: str) -> np.ndarray[Any, Any]:
    """The tall matrix of gate and up."""
    gate, up = parts["gate"], parts["up"]
    both = np.stack([gate, up], axis=2) if arch == "gpt-oss" else np.concatenate([gate, up], axis=1)
    return both.reshape(-1, gate.shape[2])


@pytest.mark.parametrize("kind", [Q8_0, MXFP4])
@pytest.mark.parametrize(("name", "arch"), [("olmoe", "olmoe"), ("gpt_oss", "gpt-oss")])
def test_any_rows_of_blocks_are_read(gguf_of: Made, name: str, arch: str, kind: gguf.GGMLQuantizationType) -> None:
    model, path = gguf_of(name, MODELS[name], experts=kind)
    parts = parts_of(model, arch, kind)
    with Checkpoint(path) as checkpoint:
        gate_up, down = (checkpoint.tensors[f"{PATH}.{leaf}"] for leaf in ("gate_up_proj", "down_proj"))
        assert np.array_equal(down.read_rows(0, down.shape[0]), parts["down"].reshape(down.shape))
        expected = expected_of(parts, arch)
        assert gate_up.shape == expected.shape
        for begin, end in (
            (0, len(expected)),
            (0, 1),
            (1, 2),
            (95, 99),
            (190, 195),
            (383, 386),
            (len(expected) - 1, len(expected)),
        ):
            assert np.array_equal(gate_up.read_rows(begin, end), expected[begin:end])
        assert gate_up.origins == (set() if kind is MXFP4 else {"Q8_0"})
        assert bool(checkpoint.notes) == (kind is not MXFP4)


@pytest.mark.parametrize(("name", "arch"), [("olmoe", "olmoe"), ("gpt_oss", "gpt-oss")])
def test_codes_of_mxfp4_stay_what_they_are(gguf_of: Made, name: str, arch: str) -> None:
    model, path = gguf_of(name, MODELS[name], experts=MXFP4)
    with Checkpoint(path) as checkpoint:
        gate_up: Tensor = checkpoint.tensors[f"{PATH}.gate_up_proj"]
        assert isinstance(gate_up, MxTensor)
        codes, scales = gate_up.read_codes(5, 390)
        assert np.array_equal(dequantize(codes, scales, "e2m1"), expected_of(parts_of(model, arch, MXFP4), arch)[5:390])


def test_a_bundle_has_the_codes_of_the_file(gguf_of: Made, tmp_path: Path) -> None:
    """As published: experts in MXFP4, everything else in numbers."""
    model, path = gguf_of("gpt_oss", MODELS["gpt_oss"], experts=MXFP4)
    result = speccompile(path, "-o", tmp_path / "a.bundle", "--target-format", "mxfp6_e2m3", "--rounding", "nearest")
    assert result.exit_code == 1
    assert "would round it a second time" in result.stderr
    result = speccompile(path, "-o", tmp_path / "a.bundle", "--rounding", "nearest")
    assert result.exit_code == 0, result.output
    target = Bundle.open(tmp_path / "a.bundle").manifest.models["target"]
    experts = {tensor.name: tensor for tensor in target.tensors if ".experts." in tensor.name and tensor.own_codes}
    assert set(experts) == {
        f"model.layers.{n}.mlp.experts.{leaf}" for n in (0, 1) for leaf in ("gate_up_proj", "down_proj")
    }
    gate_up = experts[f"{PATH}.gate_up_proj"]
    data = np.memmap(tmp_path / "a.bundle" / target.weights, np.uint8, "r", gate_up.offset, (gate_up.bytes,))
    rows, k = gate_up.shape
    values = unpack_values(data.reshape(packed_shape(gate_up.format, rows, k)), gate_up.format, rows, k)
    assert np.array_equal(values, expected_of(parts_of(model, "gpt-oss", MXFP4), "gpt-oss"))
    assert (gate_up.error, gate_up.origins) == (0, ())


@pytest.mark.parametrize(
    ("others", "changes", "error", "message"),
    [
        ({"blk.1.ffn_up_exps.weight": None}, {}, CheckpointError, "'blk.1.ffn_up_exps.weight' is missing"),
        (
            {f"blk.1.ffn_{part}_exps.weight": None for part in ("gate", "up", "down")},
            {},
            CheckpointError,
            "no tensor for model.layers.1.mlp.experts",
        ),
        (
            {},
            {"olmoe.expert_count": 7},
            CheckpointError,
            r"has shape \[8, 96, 64\], expected 3 dimensions, the first of 7",
        ),
        ({}, {"olmoe.expert_used_count": 9}, CheckpointError, "expert_used_count: got 9, expected 1 to 8"),
        ({}, {"olmoe.expert_weights_norm": True}, UnsupportedModelError, "expert_weights_norm: got True"),
        ({}, {"olmoe.expert_gating_func": 2}, UnsupportedModelError, "expert_gating_func: got 2"),
        (
            {"blk.0.ffn_up_exps.bias": np.zeros((8, 96), np.float32)},
            {},
            UnsupportedModelError,
            "does not belong to a olmoe",
        ),
        (
            {"blk.0.ffn_up_exps.weight": np.zeros((8, 64, 64), np.float32)},
            {},
            CheckpointError,
            r"has shape \[8, 64, 64\], expected \[8, 96, 64\], that of ffn_gate_exps",
        ),
    ],
)
def test_what_a_file_lacks_is_named(
    gguf_of: Made, others: dict[str, Any], changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    _, path = gguf_of("olmoe", EXPERTS, others=others, **changes)
    with pytest.raises(error, match=message) as caught:
        find_all(path)
    assert "\n" not in str(caught.value)


def find_all(path: Path) -> None:
    with Checkpoint(path) as checkpoint:
        names = [name for name, _ in checkpoint.named.named_parameters()]
        resolve_names(checkpoint.named, checkpoint.tensors, names)
