"""SwiGLU and GeGLU through ONNX Runtime: right against float64, the same bits in every batch, errors that say why."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from mxspec.runtime import ops
from tests.runtime.ops.one_node import ERRORS, FLOAT, open_node

Floats = NDArray[np.float32]
OPERATORS = ("SwiGLU", "GeGLU")
EVERY_OPERATOR = pytest.mark.parametrize("operator", OPERATORS)


def open_session(operator: str, x_type: int = FLOAT) -> ort.InferenceSession:
    """A session on a graph of one gated unit."""
    return open_node(operator, ["x"], types={"x": x_type})


def run(session: ort.InferenceSession, x: Floats) -> Floats:
    out: Floats = session.run(None, {"x": x})[0]
    return out


def activated(operator: str, gate: NDArray[np.float64]) -> NDArray[np.float64]:
    """The activation by its definition, without cancellation where the gate is negative."""
    inner = gate if operator == "SwiGLU" else 2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    result: NDArray[np.float64] = gate / (1 + np.exp(-inner))
    return result


def gates() -> Floats:
    """Gates of every size around those that matter."""
    around = np.random.default_rng(0).standard_normal(3000) * 3
    tiny = 10.0 ** np.arange(-37, 0)
    return np.concatenate([np.linspace(-85, 85, 4001), around, tiny, -tiny, [0.0]]).astype(np.float32)


def test_silu_equals_float64_within_ulps() -> None:
    gate = gates()
    out = run(open_session("SwiGLU"), np.concatenate([gate, np.ones_like(gate)]))
    exact = activated("SwiGLU", gate.astype(np.float64))
    assert np.all(np.abs(out - exact) <= 5 * 2.0**-24 * np.abs(exact))


def test_tanh_gelu_equals_float64() -> None:
    gate = np.clip(gates(), -20, 85)
    out = run(open_session("GeGLU"), np.concatenate([gate, np.ones_like(gate)]))
    exact = activated("GeGLU", gate.astype(np.float64))
    assert np.all(np.abs(out - exact) <= 5 * 2.0**-24 * np.abs(gate))  # 1 + tanh cancels where the gate is negative


@EVERY_OPERATOR
@pytest.mark.parametrize("shape", [(2,), (1, 1, 62), (3, 5, 66), (7, 20000), (0, 8), (4, 0)])
def test_gate_and_up_are_the_halves_of_a_row(operator: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    gate, up = np.split(x.astype(np.float64), 2, axis=-1)
    out = run(open_session(operator), x)
    assert out.shape == gate.shape
    np.testing.assert_allclose(out, activated(operator, gate) * up, rtol=1e-5, atol=1e-6)


@EVERY_OPERATOR
def test_values_that_are_not_finite_give_the_same_as_torch(operator: str) -> None:
    gate = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, -200, 0, 1, 1], np.float32)
    up = np.array([1, 1, 1, 1, 1, 1, 5, np.inf, np.nan], np.float32)
    out = run(open_session(operator), np.concatenate([gate, up]))
    np.testing.assert_array_equal(out[:7], np.array([np.inf, np.nan, np.nan, 1e30, 0, 0, 0], np.float32))
    np.testing.assert_array_equal(out[7:], [np.inf, np.nan])


@EVERY_OPERATOR
def test_row_does_not_depend_on_the_rest_of_the_batch(operator: str) -> None:
    """Alone or among others, on one thread or three, wherever a value lies in its row."""
    session = open_session(operator)
    x = np.random.default_rng(2).standard_normal((40, 2 * 1003), np.float32) * 4
    ops.set_threads(1)
    rows = np.concatenate([run(session, row[None]) for row in x])
    for threads in (1, 3):
        ops.set_threads(threads)
        assert run(session, x).tobytes() == rows.tobytes()
        assert run(session, x.reshape(4, 10, -1)).tobytes() == rows.tobytes()
    for first in (1, 7, 1000):  # a value in another lane
        part = np.concatenate([x[:, first:1003], x[:, 1003 + first :]], axis=1)
        assert run(session, part).tobytes() == rows[:, first:].tobytes()


def fixed_calls() -> dict[str, Floats]:
    special = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, -87, -86.5, -0.0], np.float32)
    gate = np.concatenate([gates(), special])
    x = np.concatenate([gate, np.random.default_rng(3).standard_normal(len(gate), np.float32)])
    return {operator: run(open_session(operator), x) for operator in OPERATORS}


@EVERY_OPERATOR
@pytest.mark.parametrize("shape", [(), (3, 7)])
def test_wrong_shapes(operator: str, shape: tuple[int, ...]) -> None:
    text = str(list(shape)).replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(
        ERRORS.InvalidArgument,
        match=rf"mxspec.{operator}: x: got shape {text}, expected \[..., 2n\]",
    ):
        run(open_session(operator), np.zeros(shape, np.float32))


def test_wrong_type() -> None:
    with pytest.raises(ERRORS.InvalidGraph, match="double"):
        open_session("SwiGLU", TensorProto.DOUBLE)
