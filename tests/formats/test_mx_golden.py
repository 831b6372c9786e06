"""The codec against microxcaling's own numbers (README.md of each folder in tests/golden)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mxspec.formats.tiles import dequantize, pack, pack_values, quantize, unpack
from mxspec.formats.weight_format import ELEMENTS

GOLDEN = Path(__file__).parents[1] / "golden"
SETS = {"mx": ("e3m2", "e2m3"), "mx_e2m1_int8": ("e2m1", "int8")}
ALL_ELEMENTS = tuple(element for elements in SETS.values() for element in elements)
NEAREST = {"away": "nearest", "even": "even"}


def folder_of(element: str) -> Path:
    """Where the numbers of an element are."""
    return next(GOLDEN / name for name, elements in SETS.items() if element in elements)


def names_of(element: str) -> list[str]:
    """The golden files of an element: the ties files hold one element only."""
    names = sorted(path.stem for path in folder_of(element).glob("*.npz"))
    return [name for name in names if not name.startswith("ties") or name.endswith(element)]


CASES = [(name, element) for element in ALL_ELEMENTS for name in names_of(element)]


def test_no_golden_file_is_missing() -> None:
    assert {element: len(names_of(element)) for element in ALL_ELEMENTS} == {
        "e3m2": 16,
        "e2m3": 16,
        "e2m1": 11,
        "int8": 11,
    }


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize(("name", "element"), CASES)
def test_codes_scales_and_values_equal_the_golden_file(name: str, element: str, rounding: str, isa: str) -> None:
    with np.load(folder_of(element) / f"{name}.npz") as golden:
        x, wanted_scales = golden["x"], golden[f"{element}_scale"]
        wanted_codes = golden[f"{element}_{NEAREST[rounding]}_code"]
        wanted_values = golden[f"{element}_{NEAREST[rounding]}_dq"]
    if element == "int8":  # two's complement has one zero; the library's values, which are no codes, have two
        wanted_values += np.float32(0)
    codes, scales = quantize(x, element, rounding)
    np.testing.assert_array_equal(scales, wanted_scales)
    np.testing.assert_array_equal(codes, wanted_codes)  # code 0 in NaN blocks, and every sign of zero

    values = dequantize(codes, scales, element)
    live = np.repeat(scales != 255, 32, axis=1)[:, : x.shape[1]]
    np.testing.assert_array_equal(values.view(np.uint32)[live], wanted_values.view(np.uint32)[live])
    assert np.isnan(values[~live]).all()
    assert np.isnan(wanted_values[~live]).all()

    packed = pack_values(x, ELEMENTS[element].name, rounding=rounding)
    np.testing.assert_array_equal(packed.data, pack(wanted_codes, wanted_scales, element))
    unpacked = unpack(packed.data, *x.shape, element)
    np.testing.assert_array_equal(unpacked[0], wanted_codes)
    np.testing.assert_array_equal(unpacked[1], wanted_scales)


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize("element", ALL_ELEMENTS)
@pytest.mark.parametrize(("name", "dtype"), [("fp16_128x512", "float16"), ("bf16_128x512", "bfloat16")])
def test_half_precision_bits_are_packed_without_a_detour(
    name: str, dtype: str, element: str, rounding: str, isa: str
) -> None:
    with np.load(GOLDEN / "mx" / f"{name}.npz") as inputs:
        bits = inputs["orig_bits"]
    with np.load(folder_of(element) / f"{name}.npz") as golden:
        wanted_scales = golden[f"{element}_scale"]
        wanted_codes = golden[f"{element}_{NEAREST[rounding]}_code"]
    values = bits.view(np.float16) if dtype == "float16" else bits
    packed = pack_values(values, ELEMENTS[element].name, rounding=rounding, dtype=dtype)
    np.testing.assert_array_equal(packed.data, pack(wanted_codes, wanted_scales, element))


def test_the_two_roundings_differ_in_the_ties_file() -> None:
    """Else an ignored `rounding` could pass: the golden codes of the two differ."""
    for element in ALL_ELEMENTS:
        ties = next(name for name in names_of(element) if name.startswith("ties") and "one_ulp" not in name)
        with np.load(folder_of(element) / f"{ties}.npz") as golden:
            differing = golden[f"{element}_even_code"] != golden[f"{element}_nearest_code"]
            even, away = quantize(golden["x"], element, "even")[0], quantize(golden["x"], element, "away")[0]
        np.testing.assert_array_equal(even != away, differing)
        assert differing.sum() > 300
