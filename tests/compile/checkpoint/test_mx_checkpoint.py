"""Checkpoints that are MX already: every layout's codes come out bit for bit, and what is not understood is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import lay_out
from mxspec.compile.weights import pack
from mxspec.compile.weights.pack import pack_weights
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.tiles import unpack
from mxspec.formats.weight_format import WEIGHT_FORMATS, packed_shape

N, K = 50, 96  # the last row tile is ragged

COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "mxfp4-pack-quantized",
            "input_activations": {"num_bits": 4, "type": "float", "dynamic": True, "group_size": 32},
            "output_activations": None,
            "weights": {
                "num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
                "dynamic": False, "scale_dtype": "torch.uint8", "observer": "minmax", "actorder": None,
            },
        }
    },
}  # fmt: skip


def quark_layer(dtype: str) -> dict[str, Any]:
    weight = {
        "dtype": dtype, "is_dynamic": False, "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "symmetric": None,
        "round_method": "half_even", "scale_type": "float", "scale_format": "e8m0", "scale_calculation_mode": "even",
        "mx_element_dtype": None, "observer_cls": "PerBlockMXObserver", "is_scale_quant": False,
    }  # fmt: skip
    inputs = {"dtype": dtype, "is_dynamic": True}
    return {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None, "target_device": None}


def quark(dtype: str, version: str | None = "0.13", **layers: str) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "version": version,
        "global_quant_config": quark_layer(dtype),
        "layer_type_quant_config": {},
        "layer_quant_config": {pattern: quark_layer(other) for pattern, other in layers.items()},
        "exclude": ["lm_head"],
        "algo_config": [{"name": "gptq", "desc_act": False}],
        "softmax_quant_spec": None,
        "quant_mode": "eager_mode",
        "export": {"weight_format": "real_quantized", "pack_method": "reorder", "kv_cache_group": []},
    }


def bits_of(codes: NDArray[np.uint8], bits: int) -> list[list[list[int]]]:
    """Bit j of code i of row r."""
    return [[[int(code) >> bit & 1 for bit in range(bits)] for code in row] for row in codes]


def in_order(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """One bit after the other, the lowest first: nibbles, and Quark's FP6 from 0.10 on."""
    rows = [[bit for code in row for bit in code] for row in bits_of(codes, bits)]
    return np.packbits(np.array(rows, np.uint8), axis=1, bitorder="little")


def in_planes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Quark's FP6 of 0.9: of four codes first bits 5 and 4 of each, then bits 3 to 0 of each, the highest first."""
    rows = []
    for row in bits_of(codes, bits):
        fours = [row[i : i + 4] for i in range(0, len(row), 4)]
        rows.append(
            [
                bit
                for four in fours
                for part in ((5, 4), (3, 2, 1, 0))
                for code in four
                for bit in (code[b] for b in part)
            ]
        )
    return np.packbits(np.array(rows, np.uint8), axis=1, bitorder="big")


def value_of(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """OCP MX 1.0, section 5.3: sign, exponent with the bias 2^(E-1) - 1, mantissa; exponent 0 is subnormal."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    return sign * (2.0 ** (exponent - bias) * (1 + fraction) if exponent else 2.0 ** (1 - bias) * fraction)


ELEMENTS = {"mxfp4_e2m1": (2, 1), "mxfp6_e3m2": (3, 2), "mxfp6_e2m3": (2, 3)}


def dequantised(codes: NDArray[np.uint8], scales: NDArray[np.uint8], format_name: str) -> NDArray[np.float32]:
    exponent_bits, mantissa_bits = ELEMENTS[format_name]
    table = np.array([value_of(code, exponent_bits, mantissa_bits) for code in range(64)])
    return (table[codes] * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)).astype(np.float32)


def random_matrix(format_name: str, n: int = N, k: int = K) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Every code of the format, -0 among them, with scales up to those whose values float32 still holds."""
    rng = np.random.default_rng(n + k)
    codes = rng.integers(0, 1 << WEIGHT_FORMATS[format_name].bits, (n, k)).astype(np.uint8)
    return codes, rng.integers(0, 250, (n, k // 32)).astype(np.uint8)


# config.json's word, the format, how its codes lie, and under which name
LAYOUTS: dict[str, tuple[dict[str, Any], str, Callable[[NDArray[np.uint8], int], NDArray[np.uint8]], str]] = {
    "compressed": (COMPRESSED, "mxfp4_e2m1", in_order, "weight_packed"),
    "quark-fp4": (quark("fp4"), "mxfp4_e2m1", in_order, "weight"),
    "quark-fp4-0.9": (quark("fp4", "0.9"), "mxfp4_e2m1", in_order, "weight"),
    "quark-e3m2": (quark("fp6_e3m2"), "mxfp6_e3m2", in_order, "weight"),
    "quark-e2m3": (quark("fp6_e2m3", "0.10"), "mxfp6_e2m3", in_order, "weight"),
    "quark-e3m2-0.9": (quark("fp6_e3m2", "0.9"), "mxfp6_e3m2", in_planes, "weight"),
    "quark-mixed": (quark("fp4", x="fp6_e2m3"), "mxfp6_e2m3", in_order, "weight"),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write(folder: Path, quantization: object, **tensors: NDArray[Any]) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": quantization}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def save(folder: Path, layout: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A checkpoint of one matrix `x`; its codes and scales."""
    quantization, format_name, order, leaf = LAYOUTS[layout]
    codes, scales = random_matrix(format_name)
    packed = order(codes, WEIGHT_FORMATS[format_name].bits)
    write(folder, quantization, **{f"x.{leaf}": packed, "x.weight_scale": scales, "bias": np.ones(3, np.float16)})
    return codes, scales


def test_codes_and_values_are_the_checkpoint_s(tmp_path: Path, layout: str) -> None:
    codes, scales = save(tmp_path, layout)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors.keys() == {"x.weight", "bias"}
        assert not hasattr(checkpoint.config, "quantization_config")
        matrix = checkpoint.tensors["x.weight"]
        assert isinstance(matrix, MxTensor)
        assert (matrix.format, matrix.shape) == (LAYOUTS[layout][1], (N, K))
        assert matrix.bytes == N * K * WEIGHT_FORMATS[matrix.format].bits // 8 + N * K // 32
        found = matrix.read_codes(16, N)
        np.testing.assert_array_equal(found[0], codes[16:])
        np.testing.assert_array_equal(found[1], scales[16:])
        expected = dequantised(codes, scales, matrix.format)
        np.testing.assert_array_equal(matrix.read_rows(3, 20).view(np.uint32), expected[3:20].view(np.uint32))


@pytest.mark.parametrize("piece_weights", [1, 700, 4 << 20], ids=["tile-by-tile", "some-tiles", "at-once"])
def test_tiles_hold_the_checkpoint_s_bits(
    tmp_path: Path, layout: str, piece_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "PIECE_WEIGHTS", piece_weights)
    codes, scales = save(tmp_path, layout)
    form = WEIGHT_FORMATS[LAYOUTS[layout][1]]
    spec = WeightSpec("x", "matmul", form.name, (N, K), ("x.weight",))
    advances: list[int] = []
    with Checkpoint(tmp_path) as checkpoint:
        file = lay_out([spec])
        packed = pack_weights([spec], checkpoint.tensors, file, tmp_path / "packed.safetensors", advances.append)
        assert sum(advances) == checkpoint.tensors["x.weight"].bytes
    (entry,) = packed.entries
    assert (entry.own_codes, entry.error, entry.underflowed) == (True, 0.0, 0)
    tiles = np.fromfile(tmp_path / "packed.safetensors", np.uint8, entry.bytes, offset=entry.offset)
    found = unpack(tiles.reshape(packed_shape(form.name, N, K)), N, K, str(form.element))
    np.testing.assert_array_equal(found[0], codes)
    np.testing.assert_array_equal(found[1], scales)


def test_the_example_of_the_page() -> None:
    codes = np.array([[1, 2, 3, 4]], np.uint8)
    assert in_order(codes, 6).tobytes().hex() == "813010"
    assert in_planes(codes, 6).tobytes().hex() == "001234"


def refused(folder: Path) -> str:
    with pytest.raises((CheckpointError, UnsupportedModelError)) as caught, Checkpoint(folder):
        pass
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(("tensor ", f"{folder / 'config.json'}: quantization_config."))
    return str(caught.value)


def codes_and_scales(n: int, row_bytes: int, blocks: int) -> dict[str, NDArray[Any]]:
    return {"x.weight_packed": np.zeros((n, row_bytes), np.uint8), "x.weight_scale": np.zeros((n, blocks), np.uint8)}


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    good = codes_and_scales(16, 32, 2)
    assert "x.weight_scale' of model.safetensors has shape [16, 1], expected [16, 2]" in refused(
        write(tmp_path, COMPRESSED, **codes_and_scales(16, 32, 1))
    )
    assert "rows of 20 bytes, 40 codes of mxfp4_e2m1; expected a multiple of 32" in refused(
        write(tmp_path, COMPRESSED, **codes_and_scales(16, 20, 1))
    )
    assert "is float16[16, 2], expected U8" in refused(
        write(tmp_path, COMPRESSED, **good | {"x.weight_scale": np.zeros((16, 2), np.float16)})
    )
    assert "there is no tensor 'x.weight_scale'" in refused(
        write(tmp_path, COMPRESSED, **{"x.weight_packed": good["x.weight_packed"]})
    )
    assert "codes of 'x.weight', which exists as well" in refused(
        write(tmp_path, COMPRESSED, **good, **{"x.weight": np.zeros((16, 64), np.float16)})
    )
    excluded = {"lm_head.weight": good["x.weight_packed"], "lm_head.weight_scale": good["x.weight_scale"]}
    assert "says that lm_head is not MX" in refused(write(tmp_path, quark("fp4"), **excluded))


def test_a_nan_scale_is_refused_with_its_place(tmp_path: Path) -> None:
    tensors = codes_and_scales(40, 32, 2)
    tensors["x.weight_scale"][37, 1] = 255
    with Checkpoint(write(tmp_path, COMPRESSED, **tensors)) as checkpoint:
        matrix = checkpoint.tensors["x.weight"]
        matrix.read_rows(0, 37)
        with pytest.raises(
            CheckpointError, match=r"'x\.weight_scale' .* holds 255, the scale of NaN, at row 37, block 1"
        ):
            matrix.read_rows(32, 40)


@pytest.mark.parametrize(("path", "value", "said"), [
    ("quant_method", "gptq", "quant_method: got 'gptq', expected compressed-tensors or quark"),
    ("quant_method", ["quark"], "quant_method: got ['quark'], expected compressed-tensors or quark"),
    ("format", "nvfp4-pack-quantized", "format: got 'nvfp4-pack-quantized', expected 'mxfp4-pack-quantized'"),
    ("quantization_status", "frozen", "quantization_status: got 'frozen', expected 'compressed'"),
    ("kv_cache_scheme", {"num_bits": 8}, "kv_cache_scheme: got {'num_bits': 8}, expected none"),
    ("transform_config", {"config_groups": {"a": 1}}, "transform_config: got {'config_groups'"),
    ("formats", 1, "formats: got 1, expected no such key (did you mean 'format'?)"),
    ("config_groups", [], "config_groups: got [], expected an object"),
    ("config_groups.group_0", ["Linear"], "config_groups.group_0: got ['Linear'], expected an object"),
    ("config_groups.group_0.weights", None, "config_groups.group_0.weights: got none, expected an object"),
    ("config_groups.group_0.weights.group_size", 16, "weights.group_size: got 16, expected 32"),
    ("config_groups.group_0.weights.symmetric", False, "weights.symmetric: got False, expected True"),
    ("config_groups.group_0.weights.actorder", "group", "weights.actorder: got 'group', expected none or 'weight'"),
    ("config_groups.group_0.input_activations.dynamic", False, "input_activations: got {'num_bits'"),
])  # fmt: skip
def test_compressed_tensors_that_are_not_understood(tmp_path: Path, path: str, value: object, said: str) -> None:
    assert said in changed(tmp_path, COMPRESSED, path, value)


@pytest.mark.parametrize(("path", "value", "said"), [
    ("version", None, "version: got none, expected one of 0.9, 0.10, 0.11, 0.12, 0.13"),
    ("version", "0.14", "version: got '0.14', expected one of"),
    ("version", "0.10.dev3", "version: got '0.10.dev3', expected one of"),
    ("export", None, "export: got none, expected an object"),
    ("export.weight_format", "fake_quantized", "export.weight_format: got 'fake_quantized', expected 'real_quantized'"),
    ("algo_config", {"name": "rotation"}, "algo_config.name: got 'rotation', expected one of awq"),
    ("exclude", "lm_head", "exclude: got 'lm_head', expected a list"),
    ("layer_type_quant_config", {"Embedding": {}}, "layer_type_quant_config.Embedding: got {}, expected no such key"),
    ("global_quant_config.output_tensors", {"dtype": "fp8_e4m3"}, "global_quant_config.output_tensors: got {'dtype'"),
    ("global_quant_config.weight.dtype", "mx", "weight.dtype: got 'mx', expected 'fp4' or 'fp6_e3m2' or 'fp6_e2m3'"),
    ("global_quant_config.weight.scale_format", "float32", "weight.scale_format: got 'float32', expected 'e8m0'"),
    ("global_quant_config.weight.ch_axis", 0, "weight.ch_axis: got 0, expected -1 or 1"),
    ("global_quant_config.weight.zeros", 0, "weight.zeros: got 0, expected no such key"),
    ("global_quant_config.weight", [{}, {}], "global_quant_config.weight: got [{}, {}], expected an object"),
    ("global_quant_config.input_tensors.is_dynamic", False, "global_quant_config.input_tensors: got {'dtype'"),
])  # fmt: skip
def test_quark_configurations_that_are_not_understood(tmp_path: Path, path: str, value: object, said: str) -> None:
    assert said in changed(tmp_path, quark("fp6_e3m2"), path, value)


def changed(folder: Path, quantization: dict[str, Any], path: str, value: object) -> str:
    """How a configuration is refused that has another value at this path."""
    found = quantization = copy.deepcopy(quantization)
    *outer, last = path.split(".")
    for key in outer:
        found = found[key]
    found[last] = value
    return refused(write(folder, quantization, bias=np.ones(3, np.float16)))
