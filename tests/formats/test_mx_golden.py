"""The codec against microxcaling's own numbers (tests/golden/mx/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mxspec.formats import dequantize, pack, quantize, quantize_pack, unpack
from mxspec.formats.native import available_isas

GOLDEN = Path(__file__).parents[1] / "golden" / "mx"
FILES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
NEAREST = {"away": "nearest", "even": "even"}


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set of this machine in turn."""
    monkeypatch.setenv("MXSPEC_ISA", request.param)
    return str(request.param)


def elements(name: str) -> list[str]:
    """The elements that a golden file holds: the ties files have their own only."""
    own = [element for element in ("e3m2", "e2m3") if name.startswith("ties") and name.endswith(element)]
    return own or ["e3m2", "e2m3"]


CASES = [(name, element) for name in FILES for element in elements(name)]


def test_no_golden_file_is_missing() -> None:
    assert len(FILES) == 18
    assert len(CASES) == 32


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize(("name", "element"), CASES)
def test_codes_scales_and_values_equal_the_golden_file(name: str, element: str, rounding: str, isa: str) -> None:
    with np.load(GOLDEN / f"{name}.npz") as golden:
        x, wanted_scales = golden["x"], golden[f"{element}_scale"]
        wanted_codes = golden[f"{element}_{NEAREST[rounding]}_code"]
        wanted_values = golden[f"{element}_{NEAREST[rounding]}_dq"]
    codes, scales = quantize(x, element, rounding)
    np.testing.assert_array_equal(scales, wanted_scales)
    np.testing.assert_array_equal(codes, wanted_codes)  # code 0 in NaN blocks, and every sign of zero

    values = dequantize(codes, scales, element)
    live = np.repeat(scales != 255, 32, axis=1)[:, : x.shape[1]]
    np.testing.assert_array_equal(values.view(np.uint32)[live], wanted_values.view(np.uint32)[live])
    assert np.isnan(values[~live]).all()
    assert np.isnan(wanted_values[~live]).all()

    packed = quantize_pack(x, element, rounding)
    np.testing.assert_array_equal(packed.data, pack(wanted_codes, wanted_scales, element))
    unpacked = unpack(packed.data, *x.shape)
    np.testing.assert_array_equal(unpacked[0], wanted_codes)
    np.testing.assert_array_equal(unpacked[1], wanted_scales)


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize("element", ["e3m2", "e2m3"])
@pytest.mark.parametrize(("name", "dtype"), [("fp16_128x512", "float16"), ("bf16_128x512", "bfloat16")])
def test_half_precision_bits_are_packed_without_a_detour(
    name: str, dtype: str, element: str, rounding: str, isa: str
) -> None:
    with np.load(GOLDEN / f"{name}.npz") as golden:
        bits, wanted_scales = golden["orig_bits"], golden[f"{element}_scale"]
        wanted_codes = golden[f"{element}_{NEAREST[rounding]}_code"]
    values = bits.view(np.float16) if dtype == "float16" else bits
    packed = quantize_pack(values, element, rounding, dtype=dtype)
    np.testing.assert_array_equal(packed.data, pack(wanted_codes, wanted_scales, element))


def test_the_two_roundings_differ_in_the_ties_file() -> None:
    """Else an ignored `rounding` could pass: the golden codes of the two differ."""
    for element in ("e3m2", "e2m3"):
        with np.load(GOLDEN / f"ties_all_scales_{element}.npz") as golden:
            differing = golden[f"{element}_even_code"] != golden[f"{element}_nearest_code"]
            even, away = quantize(golden["x"], element, "even")[0], quantize(golden["x"], element, "away")[0]
        np.testing.assert_array_equal(even != away, differing)
        assert differing.sum() > 1000
