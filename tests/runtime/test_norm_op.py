"""AddRMSNorm through ONNX Runtime: right against float64, the same bits in any company, errors that say why.

Run as a program, this file stores the results of one fixed set of calls, for comparison between processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mxspec.runtime import ops

Floats = NDArray[np.float32]
ERRORS = ort.capi.onnxruntime_pybind11_state
EPSILON = 1e-5


def open_session(**attributes: float) -> ort.InferenceSession:
    """A session on a graph of one AddRMSNorm."""
    names, results = ["x", "residual", "weight"], ["norm", "sum"]
    node = helper.make_node("AddRMSNorm", names, results, domain="mxspec")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in which] for which in (names, results)
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mxspec", 1)]
    model = helper.make_model(helper.make_graph([node], "norm", inputs, outputs), opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors reach us as exceptions, not as lines on standard error
    options.register_custom_ops_library(str(ops.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return open_session(epsilon=EPSILON)


def run(session: ort.InferenceSession, x: Floats, residual: Floats, weight: Floats) -> list[Floats]:
    outputs: list[Floats] = session.run(None, {"x": x, "residual": residual, "weight": weight})
    return outputs


def random_case(*shape: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    random = np.random.default_rng(seed)
    x, residual = random.standard_normal((2, *shape), np.float32)
    return x, residual * np.float32(3), random.standard_normal(shape[-1], np.float32)


@pytest.mark.parametrize("shape", [(1,), (15,), (2, 16), (3, 1, 47), (2, 3, 64), (5, 100), (1, 2048), (0, 8), (2, 0)])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e15])
def test_equals_float64(session: ort.InferenceSession, shape: tuple[int, ...], size: float) -> None:
    x, residual, weight = random_case(*shape)
    x, residual = x * np.float32(size), residual * np.float32(size)
    norm, total = run(session, x, residual, weight)
    assert total.tobytes() == (x + residual).tobytes()
    wide = total.astype(np.float64)
    if wide.size:
        wide = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + float(np.float32(EPSILON)))
    exact = wide * weight
    assert norm.shape == exact.shape
    assert np.all(np.abs(norm - exact) <= 16 * 2.0**-24 * np.abs(exact))


def test_zeros_and_what_is_not_finite(session: ort.InferenceSession) -> None:
    x, residual, weight = random_case(4, 33)
    clean = run(session, x, residual, weight)[0]
    x[1], residual[1] = 0, 0
    x[2, 32], residual[3, 0] = np.nan, np.inf
    norm = run(session, x, residual, weight)[0]
    assert norm[0].tobytes() == clean[0].tobytes()
    assert not norm[1].any()
    assert np.isnan(norm[2]).all()
    assert np.isnan(norm[3, 0])
    assert not norm[3, 1:].any()


def test_row_does_not_depend_on_company(session: ort.InferenceSession) -> None:
    x, residual, weight = random_case(50, 1003)
    before = ops.threads()
    try:
        ops.set_threads(1)
        rows = [run(session, x[i : i + 1], residual[i : i + 1], weight) for i in range(len(x))]
        expected = [np.concatenate(parts).tobytes() for parts in zip(*rows, strict=True)]
        for threads in (1, 3):
            ops.set_threads(threads)
            assert [out.tobytes() for out in run(session, x, residual, weight)] == expected
    finally:
        ops.set_threads(before)


def fixed_calls(session: ort.InferenceSession) -> dict[str, Floats]:
    sizes = (1, 16, 31, 64, 100, 1003, 2048)
    return {f"{n}-{i}": out for n in sizes for i, out in enumerate(run(session, *random_case(3, n, seed=n)))}


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "avx512vnni"])
def test_same_bits_on_every_isa(isa: str, tmp_path: Path, session: ort.InferenceSession) -> None:
    command = [sys.executable, __file__, str(tmp_path / "outputs.npz")]
    result = subprocess.run(command, env=os.environ | {"MXSPEC_ISA": isa}, capture_output=True, text=True)
    if "does not have" in result.stderr:
        pytest.skip(f"this machine does not have {isa}")
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "outputs.npz") as stored:
        for name, out in fixed_calls(session).items():
            assert stored[name].tobytes() == out.tobytes(), name


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((), (), (1,)), r"x: got shape \[\], expected \[..., n\]"),
        (((2, 8), (1, 8), (8,)), r"residual: got shape \[1, 8\], expected that of x, \[2, 8\]"),
        (((2, 8), (2, 8), (7,)), r"weight: got shape \[7\], expected \[n\] for x \[2, 8\]"),
        (((2, 8), (2, 8), (1, 8)), r"weight: got shape \[1, 8\]"),
    ],
)
def test_wrong_shapes(shapes: tuple[tuple[int, ...], ...], message: str, session: ort.InferenceSession) -> None:
    x, residual, weight = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(ERRORS.InvalidArgument, match=f"mxspec.AddRMSNorm: {message}"):
        run(session, x, residual, weight)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [({}, "attribute epsilon: missing"), ({"epsilon": -1.0}, "got -1"), ({"epsilon": float("nan")}, "got nan")],
)
def test_wrong_epsilon(attributes: dict[str, float], message: str) -> None:
    with pytest.raises(ERRORS.RuntimeException, match=message):
        open_session(**attributes)


if __name__ == "__main__":
    np.savez(Path(sys.argv[1]), **fixed_calls(open_session(epsilon=EPSILON)))
