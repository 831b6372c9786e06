"""PackedExperts through ONNX Runtime: right against float64, the bits of the operators it joins, in every batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from mxspec.formats.tiles import unpack_values
from mxspec.runtime import ops
from tests.runtime.ops import test_gated_op
from tests.runtime.ops.one_node import ERRORS, open_node
from tests.runtime.ops.test_matmul_op import EVERY_FORMAT, FORMATS, PackedMatMul, pack_as

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Bytes = NDArray[np.uint8]
ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")
EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)
BIASES = ("gate_up_bias", "down_bias")
ALPHA, LIMIT = 1.702, 7.0  # of clamped_swiglu, unless attributes say others


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a layer: K, I, N and the number of experts."""

    k: int = 96
    inner: int = 40
    n: int = 48
    experts: int = 6

    @property
    def attributes(self) -> dict[str, int]:
        return {"K": self.k, "inner": self.inner, "N": self.n, "experts": self.experts}


def formats_of(weight_format: str, down: str) -> dict[str, str]:
    """The attributes of "format activations", of both matrices."""
    found = {}
    for prefix, text in (("", weight_format), ("down_", down)):
        name, _, activations = text.partition(" ")
        found |= {f"{prefix}format": name} | ({f"{prefix}activations": activations} if activations else {})
    return found


def experts_session(biases: tuple[str, ...] = BIASES, **attributes: Any) -> ort.InferenceSession:
    """A session on a graph of one PackedExperts; without a bias, its place is empty."""
    types = {"chosen": TensorProto.INT64, "gate_up": TensorProto.UINT8, "down": TensorProto.UINT8}
    names = ["x", "chosen", "weights", "gate_up", "down", *(bias if bias in biases else "" for bias in BIASES)]
    return open_node("PackedExperts", names, types=types, **attributes)


@dataclass(frozen=True)
class Layer:
    """Random packed experts, what they stand for, and a session on them."""

    sizes: Sizes
    gate_up: Bytes
    down: Bytes
    gate_up_values: Floats  # [experts, 2 * inner, k]
    down_values: Floats  # [experts, n, inner]
    biases: dict[str, Floats]
    session: ort.InferenceSession

    def __call__(self, x: Floats, chosen: Ids, weights: Floats) -> Floats:
        feeds = {"x": x, "chosen": chosen, "weights": weights, "gate_up": self.gate_up, "down": self.down}
        out: Floats = self.session.run(None, feeds | self.biases)[0]
        return out


def layer_of(
    weight_format: str,
    activation: str = "silu",
    sizes: Sizes = Sizes(),
    *,
    down_format: str = "",
    biases: tuple[str, ...] = BIASES,
    **attributes: float,
) -> Layer:
    down_format = down_format or weight_format
    random = np.random.default_rng(7)
    rows, down_rows = sizes.experts * 2 * sizes.inner, sizes.experts * sizes.n
    order = rows_of(sizes, alternating=bool(attributes.get("alternating")))
    gate_up_rows = random.standard_normal((rows, sizes.k), np.float32) * np.float32(0.3)
    gate_up = pack_as(weight_format, gate_up_rows[order])
    down = pack_as(down_format, random.standard_normal((down_rows, sizes.inner), np.float32) * np.float32(0.3))
    shapes = {"gate_up_bias": (sizes.experts, 2 * sizes.inner), "down_bias": (sizes.experts, sizes.n)}
    session = experts_session(
        biases, activation=activation, **sizes.attributes, **formats_of(weight_format, down_format), **attributes
    )
    drawn = {name: random.standard_normal(shapes[name], np.float32) for name in biases}
    if "gate_up_bias" in drawn:
        drawn["gate_up_bias"] = drawn["gate_up_bias"].reshape(-1)[order].reshape(shapes["gate_up_bias"])
    return Layer(
        sizes,
        gate_up,
        down,
        unpack_values(gate_up, weight_format.split()[0], rows, sizes.k).reshape(sizes.experts, -1, sizes.k),
        unpack_values(down, down_format.split()[0], down_rows, sizes.inner).reshape(sizes.experts, -1, sizes.inner),
        drawn,
        session,
    )


def rows_of(sizes: Sizes, *, alternating: bool) -> Ids:
    """The rows of gate and up, those of the gate first, in the order in which they are stored."""
    rows = np.arange(sizes.experts * 2 * sizes.inner).reshape(sizes.experts, 2, sizes.inner)
    return (rows.transpose(0, 2, 1) if alternating else rows).reshape(-1)


def routing(rows: int, sizes: Sizes, top_k: int = 3, seed: int = 0) -> tuple[Floats, Ids, Floats]:
    """Rows of x, the chosen experts, some of them twice, and their weights."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, sizes.k), np.float32)
    chosen = random.integers(0, sizes.experts, (rows, top_k))
    return x, chosen, random.random((rows, top_k), np.float32)


def gated(
    activation: str, gate: NDArray[np.float64], up: NDArray[np.float64], alpha: float, limit: float
) -> NDArray[np.float64]:
    """The gate by its definition."""
    if activation == "clamped_swiglu":
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return np.asarray((up + 1) * gate / (1 + np.exp(-alpha * gate)))
    return test_gated_op.activated({"silu": "SwiGLU", "gelu_tanh": "GeGLU"}[activation], gate) * up


def exact(
    layer: Layer, activation: str, x: Floats, chosen: Ids, weights: Floats, alpha: float = ALPHA, limit: float = LIMIT
) -> NDArray[np.float64]:
    """The layer in float64, row by row and expert by expert."""
    out = np.zeros((len(x), layer.sizes.n))
    gate_up_bias = layer.biases.get("gate_up_bias", np.zeros((layer.sizes.experts, 1), np.float32))
    down_bias = layer.biases.get("down_bias", np.zeros((layer.sizes.experts, 1), np.float32))
    for row, (of_row, ids, factors) in enumerate(zip(x.astype(np.float64), chosen, weights, strict=True)):
        for expert, factor in zip(ids, factors, strict=True):
            values = layer.gate_up_values[expert].astype(np.float64) @ of_row + gate_up_bias[expert]
            h = gated(activation, values[: layer.sizes.inner], values[layer.sizes.inner :], alpha, limit)
            out[row] += factor * (layer.down_values[expert].astype(np.float64) @ h + down_bias[expert])
    return out


@EVERY_ACTIVATION
@EVERY_FORMAT
@pytest.mark.parametrize("biases", [(), BIASES, BIASES[1:]])
def test_equals_float64(weight_format: str, activation: str, biases: tuple[str, ...]) -> None:
    layer = layer_of(weight_format, activation, biases=biases)
    for rows in (1, 5, 40):
        call = routing(rows, layer.sizes, seed=rows)
        expected = exact(layer, activation, *call)
        scale = np.sqrt(np.mean(expected**2))
        error = np.abs(layer(*call) - expected) / scale
        assert error.max() < (0.15 if weight_format.endswith("int8") else 1e-3)  # the wrong expert gives 2 or more
        assert np.sqrt(np.mean(error**2)) < (0.03 if weight_format.endswith("int8") else 2e-4)


def fma(a: Floats, b: np.float32, c: Floats) -> Floats:
    """a * b + c rounded once: the product and the sum have room in longdouble, or nearly."""
    return np.asarray(a.astype(np.longdouble) * np.longdouble(b) + c.astype(np.longdouble)).astype(np.float32)


@EVERY_ACTIVATION
def test_rows_of_gate_and_up_may_alternate(activation: str) -> None:
    call = routing(9, Sizes())
    apart, alternating = (layer_of("mxfp4_e2m1", activation, alternating=which) for which in (0, 1))
    assert apart.gate_up.tobytes() != alternating.gate_up.tobytes()
    assert apart(*call).tobytes() == alternating(*call).tobytes()


@EVERY_FORMAT
@pytest.mark.parametrize(("activation", "operator"), [("silu", "SwiGLU"), ("gelu_tanh", "GeGLU")])
def test_is_the_operators_one_after_the_other(weight_format: str, activation: str, operator: str) -> None:
    """To the bit: each expert's products and gate as operators of their own, then the sum in the order of ranks."""
    sizes = Sizes(k=160, inner=72, n=64, experts=4)
    down_format = FORMATS[(FORMATS.index(weight_format) + 1) % len(FORMATS)]
    layer = layer_of(weight_format, activation, sizes, down_format=down_format)
    x, chosen, weights = routing(9, sizes)
    gate_up = PackedMatMul(weight_format, 2 * sizes.inner, sizes.k, bias=True)
    down = PackedMatMul(down_format, sizes.n, sizes.inner, bias=True)
    unit = test_gated_op.open_session(operator)
    tiles, down_tiles = np.split(layer.gate_up, sizes.experts), np.split(layer.down, sizes.experts)
    of_experts = []
    for expert in range(sizes.experts):
        h = test_gated_op.run(unit, gate_up(x, tiles[expert], layer.biases["gate_up_bias"][expert]))
        of_experts.append(down(h, down_tiles[expert], layer.biases["down_bias"][expert]))
    expected = np.zeros((len(x), sizes.n), np.float32)
    for row in range(len(x)):
        for expert, weight in zip(chosen[row], weights[row], strict=True):
            expected[row] = fma(of_experts[expert][row], weight, expected[row])
    np.testing.assert_array_equal(layer(x, chosen, weights), expected)


def test_the_formats_of_both_matrices_may_differ() -> None:
    layer = layer_of("mxfp4_e2m1 int8", down_format="mxint8")
    call = routing(6, layer.sizes)
    expected = exact(layer, "silu", *call)
    assert np.abs(layer(*call) - expected).max() < 0.15 * np.sqrt(np.mean(expected**2))


def test_constants_of_the_clamped_gate() -> None:
    layer = layer_of("mxint8", "clamped_swiglu", alpha=0.5, limit=1.25)
    call = routing(6, layer.sizes)
    expected = exact(layer, "clamped_swiglu", *call, alpha=0.5, limit=1.25)
    assert np.abs(layer(*call) - expected).max() < 1e-3 * np.sqrt(np.mean(expected**2))


@EVERY_FORMAT
def test_an_expert_chosen_twice_counts_twice(weight_format: str) -> None:
    layer = layer_of(weight_format)
    x, _, _ = routing(3, layer.sizes)
    twice = layer(x, np.full((3, 2), 4), np.full((3, 2), 0.5, np.float32))
    once = layer(x, np.full((3, 1), 4), np.ones((3, 1), np.float32))
    np.testing.assert_array_equal(twice, once)


@EVERY_FORMAT
def test_leading_dimensions(weight_format: str) -> None:
    layer = layer_of(weight_format)
    x, chosen, weights = routing(12, layer.sizes)
    flat = layer(x, chosen, weights)
    shape = (2, 3, 2)
    shaped = layer(x.reshape(*shape, -1), chosen.reshape(*shape, -1), weights.reshape(*shape, -1))
    np.testing.assert_array_equal(shaped, flat.reshape(*shape, -1))
    np.testing.assert_array_equal(layer(x[0], chosen[0], weights[0]), flat[0])
    assert layer(x[:0], chosen[:0], weights[:0]).shape == (0, layer.sizes.n)
    assert not layer(x, chosen[:, :0], weights[:, :0]).any()


@EVERY_FORMAT
def test_row_does_not_depend_on_the_rest_of_the_batch(weight_format: str) -> None:
    """Nor on its place in it, nor on the number of threads."""
    layer = layer_of(weight_format, sizes=Sizes(k=288, inner=200, n=272, experts=5))
    x, chosen, weights = routing(90, layer.sizes)
    chosen[:, 0] = np.minimum(chosen[:, 0], 1)  # some experts get many rows, some few
    order = np.random.default_rng(1).permutation(len(x))
    ops.set_threads(1)
    rows = np.concatenate([layer(x[i : i + 1], chosen[i : i + 1], weights[i : i + 1]) for i in range(len(x))])
    for threads in (1, 2, 3):
        ops.set_threads(threads)
        for m in (1, 2, 5, 17, 40, 90):
            assert layer(x[:m], chosen[:m], weights[:m]).tobytes() == rows[:m].tobytes(), m
        assert layer(x[order], chosen[order], weights[order]).tobytes() == rows[order].tobytes()


@EVERY_FORMAT
@EVERY_ACTIVATION
def test_a_row_that_is_not_finite_gives_nan_and_changes_no_other(weight_format: str, activation: str) -> None:
    layer = layer_of(weight_format, activation)
    x, chosen, weights = routing(9, layer.sizes)
    clean = layer(x, chosen, weights)
    x[2, 69], x[4, 0], x[7, 33], weights[8, 1] = np.inf, -np.inf, np.nan, np.nan
    out = layer(x, chosen, weights)
    assert np.isnan(out[[2, 4, 7, 8]]).all()
    keep = [0, 1, 3, 5, 6]
    assert out[keep].tobytes() == clean[keep].tobytes()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("magnitude", [1e18, 1e-38, 1e-42])
def test_extreme_magnitudes(weight_format: str, magnitude: float) -> None:
    layer = layer_of(weight_format, biases=())
    x, chosen, weights = routing(4, layer.sizes)
    x[1] *= np.float32(magnitude)
    with np.errstate(over="ignore"):  # e^-gate
        expected = exact(layer, "silu", x, chosen, weights)
    error = np.abs(layer(x, chosen, weights) - expected).max(axis=1)
    scale = np.sqrt(np.mean(expected**2, axis=1))
    assert np.all(error <= (0.15 if weight_format.endswith("int8") else 1e-3) * scale + 1e-43)


def test_counts_what_calls_touch() -> None:
    layer = layer_of("mxint8")
    x, _, weights = routing(4, layer.sizes, top_k=2)
    before = ops.experts_counts()
    layer(x, np.array([[0, 5], [5, 0], [5, 5], [0, 3]]), weights)
    assert ops.experts_counts() - before == ops.ExpertsCounts(calls=1, rows=4, experts=3)
    layer(x[:1], np.array([[2, 2]]), weights[:1])
    layer(x[:0], np.zeros((0, 2), np.int64), weights[:0])
    assert ops.experts_counts() - before == ops.ExpertsCounts(calls=3, rows=5, experts=4)


UNTOUCHED = """
import ctypes, mmap, sys
from dataclasses import replace
import numpy as np
from tests.runtime.ops.test_experts_op import Sizes, layer_of, routing

libc = ctypes.CDLL(None, use_errno=True)

def guarded(packed, experts, chosen):  # a copy of which only the pages of chosen experts may be read
    memory = mmap.mmap(-1, packed.nbytes)
    copy = np.frombuffer(memory, np.uint8).reshape(packed.shape)
    copy[:] = packed
    size = packed.nbytes // experts
    assert size % mmap.PAGESIZE == 0
    for expert in set(range(experts)) - set(chosen.ravel().tolist()):
        address = copy.ctypes.data + expert * size
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0) == 0
    return copy

layer = layer_of(sys.argv[1], sizes=Sizes(k=512, inner=128, n=1024, experts=7))
for rows in (1, 3, 40):
    x, chosen, weights = routing(rows, layer.sizes)
    chosen = chosen % 3 * 2 + 1  # 1, 3 or 5: each between two that are not chosen
    part = replace(
        layer, gate_up=guarded(layer.gate_up, 7, chosen), down=guarded(layer.down, 7, chosen)
    )
    assert part(x, chosen, weights).tobytes() == layer(x, chosen, weights).tobytes()
print("untouched")
"""


@EVERY_FORMAT
def test_experts_that_were_not_chosen_are_not_read(weight_format: str) -> None:
    """Their pages may not be read at all: a process that did would end."""
    result = subprocess.run([sys.executable, "-c", UNTOUCHED, weight_format], capture_output=True, text=True)
    assert result.stdout == "untouched\n", result.stderr


def fixed_calls() -> Iterator[tuple[str, Floats]]:
    """Layers over formats, activations and rows, with extreme, infinite and NaN rows among them."""
    for i, weight_format in enumerate(FORMATS):
        activation = ACTIVATIONS[i % 3]
        layer = layer_of(weight_format, activation, Sizes(k=320, inner=56, n=80, experts=5), alternating=i % 2)
        for rows in (1, 4, 33, 100):
            x, chosen, weights = routing(rows, layer.sizes, seed=rows)
            if rows > 3:
                x[0] *= np.float32(1e37)
                x[1] *= np.float32(1e-40)
                x[2, 5], x[3, 0], weights[rows - 1, 2] = np.inf, np.nan, np.nan
            yield f"{weight_format}-{activation}-{rows}", layer(x, chosen, weights)


GOOD = {**Sizes().attributes, **formats_of("mxint8", "mxint8"), "activation": "silu"}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"K": 0}, "attribute K: got 0, expected 1"),
        ({"N": 40}, "attribute N: got 40, expected a multiple of 16"),
        ({"inner": 12}, "attribute inner: got 12, expected a multiple of 8"),
        ({"experts": 0}, "attribute experts: got 0, expected 1"),
        ({"experts": None}, "attribute experts: missing"),
        ({"down_format": "mxfp4"}, 'attribute down_format: got "mxfp4", expected one of fp16_tiles, '),
        ({"down_format": None}, "attribute down_format: missing"),
        ({"activations": "int4"}, 'attribute activations: got "int4", expected int16 or int8'),
        (
            {"down_format": "mxfp6_e3m2", "down_activations": "int8"},
            "attribute down_activations: got int8 with format mxfp6_e3m2, which takes int16 only",
        ),
        ({"activation": "relu"}, 'attribute activation: got "relu", expected silu, gelu_tanh or clamped_swiglu'),
        ({"activation": None}, "attribute activation: missing"),
        ({"alternating": 2}, "attribute alternating: got 2, expected 0 or 1"),
        ({"alpha": float("nan")}, "attribute alpha: got nan, expected a finite number"),
        ({"limit": -1.0}, "attribute limit: got -1.000000, expected 0 or more"),
    ],
)
def test_wrong_attributes(attributes: dict[str, Any], message: str) -> None:
    given = {name: value for name, value in (GOOD | attributes).items() if value is not None}
    with pytest.raises(ERRORS.RuntimeException, match=message):
        experts_session(**given)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (2, 95)}, r"x: got shape \[2, 95\], expected \[..., K\] with K = 96"),
        ({"x": ()}, r"x: got shape \[\], expected"),
        ({"chosen": (3, 2)}, r"chosen: got shape \[3, 2\], expected that of x, \[2, 96\], but for the last"),
        ({"chosen": (2,)}, r"chosen: got shape \[2\], expected that of x"),
        ({"weights": (2, 2)}, r"weights: got shape \[2, 2\], expected that of chosen, \[2, 3\]"),
        (
            {"gate_up": (24, 1584)},
            r"gate_up: got shape \[24, 1584\], expected \[30, 1584\] for experts = 6, inner = 40, K = 96",
        ),
        ({"down": (18, 1)}, r"down: got shape \[18, 1\], expected \[18, 1056\] for experts = 6, inner = 40, N = 48"),
        ({"gate_up_bias": (6, 40)}, r"gate_up_bias: got shape \[6, 40\], expected \[6, 80\] for \[E, 2 \* inner\]"),
        ({"down_bias": (48,)}, r"down_bias: got shape \[48\], expected \[6, 48\] for \[E, N\]"),
    ],
)
def test_wrong_shapes(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    layer = layer_of("mxint8")
    x, chosen, weights = routing(2, layer.sizes)
    feeds = {"x": x, "chosen": chosen, "weights": weights, "gate_up": layer.gate_up, "down": layer.down, **layer.biases}
    feeds |= {name: np.zeros(shape, feeds[name].dtype) for name, shape in shapes.items()}
    with pytest.raises(ERRORS.InvalidArgument, match=f"mxspec.PackedExperts: {message}"):
        layer.session.run(None, feeds)


@pytest.mark.parametrize("expert", [-1, 6, 2**63 - 1, -(2**63)])
def test_wrong_ids(expert: int) -> None:
    layer = layer_of("mxint8")
    x, chosen, weights = routing(2, layer.sizes)
    chosen[1, 2] = expert
    with pytest.raises(
        ERRORS.InvalidArgument,
        match=f"mxspec.PackedExperts: chosen: got {expert}, expected 0 to 5",
    ):
        layer(x, chosen, weights)
