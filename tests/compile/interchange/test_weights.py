"""Codes as bits, scales as E8M0 or float32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mxspec.compile.interchange import weights
from mxspec.compile.interchange.weights import convert_scales
from mxspec.formats.arrays import as_bits
from mxspec.formats.errors import MxspecError

ZEROS = np.zeros((1, 64), np.uint8)


@pytest.mark.parametrize(("kind", "bits"), [("FLOAT4E2M1", 4), ("FLOAT6E3M2", 6), ("FLOAT6E2M3", 6), ("UINT8", 8)])
@pytest.mark.parametrize("shape", [(16, 64), (3, 7), (1, 1), (5, 2)])
def test_onnx_reads_the_same_values(kind: str, bits: int, shape: tuple[int, int]) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, shape).astype(np.uint8)
    raw = np.ascontiguousarray(as_bits(codes, bits)).tobytes()
    tensor = onnx.helper.make_tensor("x", getattr(onnx.TensorProto, kind), shape, raw, raw=True)
    assert np.array_equal(onnx.numpy_helper.to_array(tensor).view(np.uint8), codes)


@pytest.mark.parametrize("exponent", [0, -6])
def test_scales_are_powers_of_two(exponent: int) -> None:
    scales = np.array([[6, 7, 120, 254]], np.uint8)
    exact = np.array([[2.0 ** (int(s) - 127 + exponent) for s in scales[0]]])
    codes = np.ones((1, 128), np.uint8)
    assert np.array_equal(convert_scales("w", codes, scales, exponent, "float32"), exact)
    found = convert_scales("w", codes, scales, exponent, "e8m0")
    assert np.array_equal(2.0 ** (found.astype(float) - 127), exact)


def test_a_scale_that_e8m0_cannot_hold_is_refused_by_name() -> None:
    scales, codes = np.array([[120, 5]], np.uint8), ZEROS.copy()
    assert convert_scales("w", codes, scales, -6, "e8m0").tolist() == [[114, 0]]  # a block of zeros
    codes[0, 40] = 1
    with pytest.raises(MxspecError, match=r"model\.up: a block's scale is 2\^-128, .*--scales float32"):
        convert_scales("model.up", codes, scales, -6, "e8m0")
    assert convert_scales("w", codes, scales, -6, "float32")[0, 1] == 2.0**-128


def test_small_pieces_are_the_same_bytes(monkeypatch, standard_model, written_model, tmp_path) -> None:
    from mxspec.compile.interchange import standard

    path, (folder, entry) = standard_model("llama-ragged", "every"), written_model("llama-ragged", "every")
    monkeypatch.setattr(weights, "PIECE_WEIGHTS", 1)
    monkeypatch.setattr(weights, "PIECE_BYTES", 7)
    done: list[int] = []
    standard.write_model(standard.plan_model(folder, entry, "e8m0"), folder, tmp_path, done.append)
    assert (tmp_path / entry.weights).read_bytes() == (path.parent / entry.weights).read_bytes()
    assert sum(done) == sum(tensor.bytes for tensor in entry.tensors)
