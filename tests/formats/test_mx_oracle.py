"""The codec against microxcaling as it runs here, where `pip install --no-deps` of group `oracle` has put it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.formats.tiles import dequantize, quantize

torch = pytest.importorskip("torch", reason="microxcaling needs torch")
oracle = pytest.importorskip(
    "mx.mx_ops", reason="microxcaling is not installed: it is in no package index (pyproject.toml, group oracle)"
)

# Its code for a k that is no multiple of 32 indexes in a way that torch is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")

ELEM_FORMATS = {"e3m2": "fp6_e3m2", "e2m3": "fp6_e2m3", "e2m1": "fp4_e2m1", "int8": "int8"}
NEAREST = {"away": "nearest", "even": "even"}


def oracle_values(x: NDArray[np.float32], element: str, rounding: str) -> NDArray[np.float32]:
    """microxcaling's dequantised values. In float64, where its log2 and floor(x + 0.5) are exact for these inputs."""
    values = oracle._quantize_mx(
        torch.from_numpy(x.astype(np.float64)),
        scale_bits=8,
        elem_format=ELEM_FORMATS[element],
        shared_exp_method="max",
        axes=[-1],
        block_size=32,
        round=NEAREST[rounding],
        flush_fp32_subnorms=False,
        custom_cuda=False,
    )
    made = np.asarray(values.numpy().astype(np.float32))
    return made + np.float32(0) if element == "int8" else made  # two's complement has one zero


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize("element", ELEM_FORMATS)
@pytest.mark.parametrize(("n", "k"), [(64, 256), (9, 45), (5, 7)])
@pytest.mark.parametrize("kept_bits", [23, 7, 4], ids=["full", "bfloat16", "many ties"])
def test_values_equal_those_of_microxcaling(kept_bits: int, n: int, k: int, element: str, rounding: str) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((n, k)) * 2.0 ** rng.integers(-140, 100, (n, 1))).astype(np.float32)
    x = (x.view(np.uint32) >> (23 - kept_bits) << (23 - kept_bits)).view(np.float32)
    x[0, :3] = 0.0, -0.0, 1e-38
    values = dequantize(*quantize(x, element, rounding), element)
    wanted = oracle_values(x, element, rounding)
    np.testing.assert_array_equal(values.view(np.uint32), wanted.view(np.uint32))
    assert (values != x).any()
