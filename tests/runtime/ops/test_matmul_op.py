"""PackedMatMul through ONNX Runtime: right against float64, the same bits in every batch, errors instead of crashes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from mxspec.formats.tiles import pack_values, unpack_values
from mxspec.formats.weight_format import packed_shape
from tests.runtime.ops.one_node import ERRORS, FLOAT, open_node

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
MX_FORMATS = ("mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_e2m1", "mxint8")
FORMATS = ("fp16_tiles", *MX_FORMATS, "mxfp6_e2m3 int8", "mxfp4_e2m1 int8", "mxint8 int8")
"""Weight formats, of which some are multiplied with int8 rows."""
EVERY_FORMAT = pytest.mark.parametrize("weight_format", FORMATS)


def pack_as(weight_format: str, weights: Floats) -> Bytes:
    """Weights float32[n, k] packed in a format."""
    return pack_values(weights, weight_format.removesuffix(" int8")).data


def matmul_session(bias: bool = False, a_type: int = FLOAT, **attributes: int | str) -> ort.InferenceSession:
    """A session on a graph of one PackedMatMul."""
    names = ["A", "B", "bias"] if bias else ["A", "B"]
    return open_node("PackedMatMul", names, types={"A": a_type, "B": TensorProto.UINT8}, **attributes)


class PackedMatMul:
    """out = a @ weights.T + bias through ONNX Runtime."""

    def __init__(self, weight_format: str, n: int, k: int, *, bias: bool = False) -> None:
        name, _, activations = weight_format.partition(" ")
        attributes = {"activations": activations} if activations else {}
        self.session = matmul_session(bias, K=k, N=n, format=name, **attributes)

    def __call__(self, a: Floats, packed: Bytes, bias: Floats | None = None) -> Floats:
        feeds = {"A": a, "B": packed} | ({} if bias is None else {"bias": bias})
        out: Floats = self.session.run(None, feeds)[0]
        return out


def fixed_calls() -> Iterator[tuple[str, Floats]]:
    """Products over formats, m and odd shapes, with extreme, infinite and NaN rows among the activations."""
    random = np.random.default_rng(5)
    for weight_format in FORMATS:
        for m, n, k in [(1, 48, 320), (3, 33, 95), (8, 100, 256), (16, 64, 64), (29, 50, 130), (130, 40, 96)]:
            weights = random.standard_normal((n, k), np.float32) * 0.05
            a = random.standard_normal((m, k), np.float32)
            if m > 3:
                a[1] *= np.float32(1e37)
                a[2] *= np.float32(1e-40)
                a[m - 1, k - 1] = np.inf
                a[m - 2, 0] = np.nan
            run = PackedMatMul(weight_format, n, k, bias=True)
            bias = random.standard_normal(n, np.float32)
            yield f"{weight_format}-{m}", run(a, pack_as(weight_format, weights), bias)


def random_case(weight_format: str, m: int, n: int, k: int, seed: int = 0) -> tuple[Floats, Bytes, Floats]:
    """Activations float32[m, k], packed weights, and the float32[n, k] that these stand for."""
    random = np.random.default_rng(seed)
    packed = pack_as(weight_format, random.standard_normal((n, k), np.float32) * np.float32(0.05))
    return random.standard_normal((m, k), np.float32), packed, unpack_values(packed, weight_format.split()[0], n, k)


def error_bound(weight_format: str, a: Floats, weights: Floats) -> np.ndarray:
    """Largest error that the arithmetic allows, float64[m, n]: activations of 15 bits or 127 steps, float32 sums."""
    magnitude = np.abs(weights.astype(np.float64))
    m, k = a.shape
    if weight_format == "fp16_tiles":
        return (k + 1) * 2.0**-24 * (np.abs(a.astype(np.float64)) @ magnitude.T)
    blocks = -(-k // 32)
    padded = np.zeros((m, blocks * 32))
    padded[:, :k] = np.abs(a)
    largest = np.repeat(padded.reshape(m, blocks, 32).max(axis=2), 32, axis=1)[:, :k]
    half_step = 1 / 253.9 if weight_format.endswith(" int8") else 2.0**-15
    return (half_step + 2 * (blocks + 1) * 2.0**-24) * (largest @ magnitude.T)


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 16, 32), (1, 300, 1000), (5, 33, 95), (8, 64, 512), (17, 70, 31), (150, 50, 290)]
)
def test_equals_float64(weight_format: str, m: int, n: int, k: int) -> None:
    a, packed, weights = random_case(weight_format, m, n, k)
    bias = np.random.default_rng(1).standard_normal(n, np.float32)
    exact = a.astype(np.float64) @ weights.astype(np.float64).T
    bound = error_bound(weight_format, a, weights)
    plain = PackedMatMul(weight_format, n, k)(a, packed)
    assert np.all(np.abs(plain - exact) <= bound)
    # The bound is one that a wrong row, column, block or scale cannot meet.
    assert np.median(bound) < (0.5 if weight_format.endswith(" int8") else 0.01) * np.median(np.abs(exact))
    with_bias = PackedMatMul(weight_format, n, k, bias=True)(a, packed, bias)
    np.testing.assert_array_equal(with_bias, plain + bias)


@EVERY_FORMAT
def test_leading_dimensions(weight_format: str) -> None:
    a, packed, _ = random_case(weight_format, 12, 40, 64)
    run = PackedMatMul(weight_format, 40, 64)
    flat = run(a, packed)
    np.testing.assert_array_equal(run(a.reshape(2, 3, 2, 64), packed), flat.reshape(2, 3, 2, 40))
    np.testing.assert_array_equal(run(a[0], packed), flat[0])
    assert run(a[:0], packed).shape == (0, 40)
    assert run(a.reshape(2, 6, 64)[:, :0], packed).shape == (2, 0, 40)


@EVERY_FORMAT
@pytest.mark.parametrize("threads", [1, 2])
def test_row_does_not_depend_on_the_rest_of_the_batch(weight_format: str, threads: int) -> None:
    n, k = 700, 672  # large enough to be divided over threads
    a, packed, _ = random_case(weight_format, 200, n, k)
    alone = PackedMatMul(weight_format, n, k)
    rows = np.concatenate([alone(a[i : i + 1], packed) for i in range(len(a))])
    run = PackedMatMul(weight_format, n, k)
    for m in [*range(1, 18), 24, 25, 100, 200]:
        assert run(a[:m], packed).tobytes() == rows[:m].tobytes(), m
    assert run(a[3:8], packed).tobytes() == rows[3:8].tobytes()


@EVERY_FORMAT
def test_a_row_that_is_not_finite_gives_nan_and_changes_no_other(weight_format: str) -> None:
    a, packed, _ = random_case(weight_format, 9, 33, 70)
    run = PackedMatMul(weight_format, 33, 70)
    clean = run(a, packed)
    a[2, 69], a[4, 0], a[7, 33] = np.inf, -np.inf, np.nan
    out = run(a, packed)
    assert np.isnan(out[[2, 4, 7]]).all()
    keep = [0, 1, 3, 5, 6, 8]
    assert out[keep].tobytes() == clean[keep].tobytes()


@pytest.mark.parametrize("weight_format", MX_FORMATS)
@pytest.mark.parametrize(
    ("activation", "weight"), [(1e38, 1e-30), (3e38, 1e-5), (1e-38, 1e30), (1e-42, 1e38), (1e-30, 1e36), (1e20, 1e-38)]
)
def test_extreme_magnitudes(weight_format: str, activation: float, weight: float) -> None:
    random = np.random.default_rng(3)
    n, k = 20, 96
    packed = pack_as(weight_format, (random.uniform(0.5, 1, (n, k)) * weight).astype(np.float32))
    weights = unpack_values(packed, weight_format, n, k)
    a = (random.uniform(-1, 1, (3, k)) * activation).astype(np.float32)
    exact = a.astype(np.float64) @ weights.astype(np.float64).T
    out = PackedMatMul(weight_format, n, k)(a, packed)
    # Where the result itself is a subnormal, one step of those.
    assert np.all(np.abs(out - exact) <= error_bound(weight_format, a, weights) + 2.0**-149 * k)


@pytest.mark.parametrize(("weight_format", "largest"), [("mxfp6_e3m2", 16), ("mxfp6_e2m3", 4)])
def test_every_scale_byte(weight_format: str, largest: float) -> None:
    weights = np.ones((16, 32), np.float32)
    weights[:, 0] = largest  # makes the scale of the ones 2^0; multiplied by zero
    packed = pack_as(weight_format, weights)
    a = np.full((1, 32), 2.0**-40, np.float32)
    a[0, 0] = 0
    run = PackedMatMul(weight_format, 16, 32)
    for scale in range(255):
        packed[:, 384:] = scale
        assert np.all(run(a, packed) == np.float32(math.ldexp(31, scale - 127 - 40))), scale


def test_large_and_tiny_blocks_in_one_row() -> None:
    """A row whose blocks lie 2^200 apart keeps its small block where the weights of the large one are zero."""
    n, k = 16, 64
    weights = np.ones((n, k), np.float32)
    weights[:, :32] = 0
    packed = pack_as("mxfp6_e3m2", weights)
    a = np.ones((1, k), np.float32)
    a[:, :32], a[:, 32:] = 2.0**120, 2.0**-80
    assert np.all(PackedMatMul("mxfp6_e3m2", n, k)(a, packed) == 2.0**-75)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"K": 0, "N": 4, "format": "fp16_tiles"}, "attribute K: got 0, expected 1"),
        ({"K": 4, "N": -1, "format": "fp16_tiles"}, "attribute N: got -1, expected 1"),
        ({"K": 2**40, "N": 4, "format": "fp16_tiles"}, "attribute K: got 1099511627776, expected 1"),
        (
            {"K": 4, "N": 4, "format": "mxfp4"},
            'attribute format: got "mxfp4", expected one of fp16_tiles, mxfp6_e3m2, ',
        ),
        ({"K": 4, "N": 4}, "attribute format: missing"),
        (
            {"K": 4, "N": 4, "format": "mxint8", "activations": "int4"},
            'activations: got "int4", expected int16 or int8',
        ),
        (
            {"K": 4, "N": 4, "format": "mxfp6_e3m2", "activations": "int8"},
            "activations: got int8 with format mxfp6_e3m2, which takes int16 only",
        ),
        ({"N": 4, "format": "fp16_tiles"}, "attribute K: missing"),
        ({"K": 4, "N": "four", "format": "fp16_tiles"}, "attribute N: missing, or not an integer"),
    ],
)
def test_wrong_attributes(attributes: dict[str, int | str], message: str) -> None:
    with pytest.raises(ERRORS.RuntimeException, match=message):
        matmul_session(**attributes)


@pytest.mark.parametrize(
    ("a", "b", "bias", "message"),
    [
        ((2, 63), None, None, r"A: got shape \[2, 63\], expected \[..., K\] with K = 64"),
        ((), None, None, r"A: got shape \[\], expected \[..., K\] with K = 64"),
        ((1,) * 8 + (64,), None, None, "A: got 9 dimensions"),
        ((2, 64), (3, 799), None, r"B: got shape \[3, 799\], expected \[3, 800\] for N = 40, K = 64"),
        ((2, 64), (2, 800), None, r"B: got shape \[2, 800\], expected \[3, 800\]"),
        ((2, 64), (2400,), None, r"B: got shape \[2400\], expected \[3, 800\]"),
        ((2, 64), None, (39,), r"bias: got shape \[39\], expected \[40\]"),
        ((2, 64), None, (1, 40), r"bias: got shape \[1, 40\], expected \[40\]"),
    ],
)
def test_wrong_shapes(
    a: tuple[int, ...], b: tuple[int, ...] | None, bias: tuple[int, ...] | None, message: str
) -> None:
    weight_format, n, k = "mxfp6_e3m2", 40, 64
    run = PackedMatMul(weight_format, n, k, bias=bias is not None)
    packed = np.zeros(b or packed_shape(weight_format, n, k), np.uint8)
    with pytest.raises(ERRORS.InvalidArgument, match=message):
        run(np.zeros(a, np.float32), packed, None if bias is None else np.zeros(bias, np.float32))


def test_wrong_type_of_a() -> None:
    with pytest.raises(ERRORS.InvalidGraph, match="double"):
        matmul_session(a_type=TensorProto.DOUBLE, K=64, N=40, format="fp16_tiles")
