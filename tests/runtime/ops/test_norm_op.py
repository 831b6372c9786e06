"""The residual norms through ONNX Runtime: right against float64, the same bits in every batch, errors that say why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from mxspec.runtime import ops
from tests.runtime.ops.one_node import ERRORS, open_node

Floats = NDArray[np.float32]
Case = tuple[Floats, Floats, Floats, Floats]
EPSILON = 1e-5


NORMS = {"AddRMSNorm": ["x", "residual", "weight"], "AddLayerNorm": ["x", "residual", "weight", "bias"]}


@dataclass(frozen=True)
class Norm:
    """A session on a graph of one norm."""

    operator: str
    session: ort.InferenceSession

    def __call__(self, case: Case, rows: slice | None = None) -> list[Floats]:
        """Norm and sum of a case, or of some rows of it; a case has a bias, which only one of the norms takes."""
        x, residual, *vectors = case
        if rows is not None:
            x, residual = x[rows], residual[rows]
        feeds = dict(zip(NORMS[self.operator], (x, residual, *vectors), strict=False))
        outputs: list[Floats] = self.session.run(None, feeds)
        return outputs


def open_norm(operator: str, **attributes: float) -> Norm:
    return Norm(operator, open_node(operator, NORMS[operator], ("norm", "sum"), **attributes))


@pytest.fixture(scope="module", params=NORMS)
def norm(request: pytest.FixtureRequest) -> Norm:
    return open_norm(request.param, epsilon=EPSILON)


def random_case(*shape: int, seed: int = 0) -> Case:
    """x, residual, weight, bias; rows far from a mean of zero."""
    random = np.random.default_rng(seed)
    x, residual = random.standard_normal((2, *shape), np.float32)
    weight, bias = random.standard_normal((2, shape[-1]), np.float32)
    return x + np.float32(2), residual * np.float32(3), weight, bias


def in_float64(operator: str, total: Floats, weight: Floats, bias: Floats) -> NDArray[np.float64]:
    wide = total.astype(np.float64)
    if not wide.size:
        return wide
    if operator == "AddLayerNorm":
        wide = wide - wide.mean(axis=-1, keepdims=True)
    scaled = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + float(np.float32(EPSILON))) * weight
    return scaled + bias if operator == "AddLayerNorm" else scaled


@pytest.mark.parametrize("shape", [(1,), (15,), (2, 16), (3, 1, 47), (2, 3, 64), (5, 100), (1, 2048), (0, 8), (2, 0)])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e15])
def test_equals_float64(norm: Norm, shape: tuple[int, ...], size: float) -> None:
    x, residual, weight, bias = random_case(*shape)
    x, residual = x * np.float32(size), residual * np.float32(size)
    got, total = norm((x, residual, weight, bias))
    assert total.tobytes() == (x + residual).tobytes()
    exact = in_float64(norm.operator, total, weight, bias)
    assert got.shape == exact.shape
    # A rounded mean is an error of the whole row, beside which a value and a bias may nearly cancel.
    allowed = np.abs(exact) if norm.operator == "AddRMSNorm" else 4 + np.abs(exact)
    assert np.all(np.abs(got - exact) <= 16 * 2.0**-24 * allowed)


def test_zeros_and_values_that_are_not_finite(norm: Norm) -> None:
    case = random_case(4, 33)
    x, residual, _, bias = case
    clean = norm(case)[0]
    x[1], residual[1] = 0, 0
    x[2, 32], residual[3, 0] = np.nan, np.inf
    got = norm(case)[0]
    assert got[0].tobytes() == clean[0].tobytes()
    assert np.isnan(got[2]).all()
    assert np.isnan(got[3, 0])
    if norm.operator == "AddRMSNorm":
        assert not got[1].any()
        assert not got[3, 1:].any()
    else:
        assert np.array_equal(got[1], bias)
        assert np.isnan(got[3]).all()  # so is the mean


def test_a_row_far_from_zero_keeps_its_digits() -> None:
    """mean(x^2) - mean(x)^2 would have none left."""
    x, residual, weight, bias = random_case(3, 100)
    got, total = open_norm("AddLayerNorm", epsilon=EPSILON)((x + np.float32(3000), residual, weight, bias))
    assert np.abs(got - in_float64("AddLayerNorm", total, weight, bias)).max() < 1e-3


def test_row_does_not_depend_on_the_rest_of_the_batch(norm: Norm) -> None:
    case = random_case(50, 1003)
    ops.set_threads(1)
    rows = [norm(case, slice(i, i + 1)) for i in range(50)]
    expected = [np.concatenate(parts).tobytes() for parts in zip(*rows, strict=True)]
    for threads in (1, 3):
        ops.set_threads(threads)
        assert [out.tobytes() for out in norm(case)] == expected


def fixed_calls() -> dict[str, Floats]:
    sizes = (1, 16, 31, 64, 100, 1003, 2048)
    norms = [open_norm(operator, epsilon=EPSILON) for operator in NORMS]
    calls = {f"{norm.operator}-{n}": norm(random_case(3, n, seed=n)) for norm in norms for n in sizes}
    return {f"{name}-{i}": out for name, outputs in calls.items() for i, out in enumerate(outputs)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((), (), (1,), (1,)), r"x: got shape \[\], expected \[..., n\]"),
        (((2, 8), (1, 8), (8,), (8,)), r"residual: got shape \[1, 8\], expected that of x, \[2, 8\]"),
        (((2, 8), (2, 8), (7,), (8,)), r"weight: got shape \[7\], expected \[n\] for x \[2, 8\]"),
        (((2, 8), (2, 8), (1, 8), (8,)), r"weight: got shape \[1, 8\]"),
    ],
)
def test_wrong_shapes(shapes: tuple[tuple[int, ...], ...], message: str, norm: Norm) -> None:
    x, residual, weight, bias = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(ERRORS.InvalidArgument, match=f"mxspec.{norm.operator}: {message}"):
        norm((x, residual, weight, bias))


def test_wrong_bias() -> None:
    x, residual, weight, bias = random_case(2, 8)
    with pytest.raises(ERRORS.InvalidArgument, match=r"AddLayerNorm: bias: got shape \[7\], expected \[n\] for x"):
        open_norm("AddLayerNorm", epsilon=EPSILON)((x, residual, weight, bias[:7]))


@pytest.mark.parametrize("operator", NORMS)
@pytest.mark.parametrize(
    ("attributes", "message"),
    [({}, "attribute epsilon: missing"), ({"epsilon": -1.0}, "got -1"), ({"epsilon": float("nan")}, "got nan")],
)
def test_wrong_epsilon(operator: str, attributes: dict[str, float], message: str) -> None:
    with pytest.raises(ERRORS.RuntimeException, match=message):
        open_norm(operator, **attributes)
