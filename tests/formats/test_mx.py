"""The codec against the definition of the format, worked out in float64 by looking for the nearest code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.formats.errors import MxspecError
from mxspec.formats.tiles import dequantize, quantize

BITS = {"e3m2": (6, 2, 3), "e2m3": (6, 3, 1), "e2m1": (4, 1, 1)}
"""Bits, mantissa bits and exponent bias (OCP MX v1.0, section 5.3)."""
ELEMENTS = (*BITS, "int8")


def magnitudes(element: str) -> NDArray[np.float64]:
    """The magnitudes in code order."""
    if element == "int8":  # two's complement in units of 2^-6; -128 is not used (section 5.3.4)
        return np.arange(128) / 64
    bits, mantissa_bits, bias = BITS[element]
    codes = np.arange(1 << (bits - 1))
    exponent, mantissa = codes >> mantissa_bits, (codes % (1 << mantissa_bits)) / (1 << mantissa_bits)
    return np.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - bias), mantissa * 2.0 ** (1 - bias))


def signed(codes: NDArray[Any], negative: NDArray[np.bool_], element: str) -> NDArray[np.uint8]:
    """Codes of magnitudes with their signs."""
    if element == "int8":
        return np.where(negative, -codes, codes).astype(np.int8).view(np.uint8)
    return (codes + (1 << (BITS[element][0] - 1)) * negative).astype(np.uint8)


def nearest_codes(x: NDArray[np.float32], element: str, rounding: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes and scales by definition: exact arithmetic in float64, a search in the list of values."""
    n, k = x.shape
    grid = magnitudes(element)
    blocks = np.zeros((n, -(-k // 32) * 32))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        blocks[:, :k] = x
    blocks = blocks.reshape(n, -1, 32)
    largest = np.abs(blocks).max(axis=2)
    dead = ~np.isfinite(largest)
    safe = np.where(dead[:, :, None], 0.0, blocks)
    exponent = np.frexp(np.where(dead, 0.0, largest))[1] - 1 - int(np.log2(grid[-1]))
    exponent = np.where((largest == 0) | dead, -127, np.maximum(exponent, -127))
    y = np.abs(safe) / 2.0 ** exponent[:, :, None]
    below = np.searchsorted(grid, y, side="right") - 1
    above = np.minimum(below + 1, len(grid) - 1)
    middle = (grid[below] + grid[above]) / 2
    tie_up = np.full(y.shape, True) if rounding == "away" else below % 2 == 1
    code = signed(np.where((y > middle) | ((y == middle) & tie_up), above, below), safe < 0, element)
    scale = np.where(dead, 255, exponent + 127)
    return code.reshape(n, -1)[:, :k].astype(np.uint8), scale.astype(np.uint8)


def awkward(seed: int, n: int, k: int) -> NDArray[np.float32]:
    """Random bits: all exponents, blocks of one magnitude, few mantissa bits (ties are then frequent), zeros, NaN."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, (n, k), np.uint32)
    centre = rng.integers(0, 250, (n, 1)).astype(np.int64)
    exponent = np.clip(centre - rng.integers(0, 9, (n, k)), 0, 254).astype(np.uint32)
    grouped = (bits & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))
    kept = np.array([0x80700000, 0x807C0000, 0x807FFFFF], np.uint32)[rng.integers(0, 3, (n, 1))] | np.uint32(0x7F800000)
    bits = np.where(rng.random((n, 1)) < 0.8, grouped & kept, bits)
    bits = np.where(rng.random((n, k)) < 0.05, bits & np.uint32(0x80000000), bits)
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (400, 32), (15, 31), (17, 33), (33, 96), (64, 500)])
def test_random_bits_get_the_nearest_code(n: int, k: int, element: str, rounding: str, isa: str) -> None:
    x = awkward(n * 1000 + k, n, k)
    codes, scales = quantize(x, element, rounding)
    wanted_codes, wanted_scales = nearest_codes(x, element, rounding)
    np.testing.assert_array_equal(scales, wanted_scales)
    np.testing.assert_array_equal(codes, wanted_codes)


@pytest.mark.parametrize("element", ELEMENTS)
def test_every_code_at_every_scale_is_its_own_nearest(element: str, isa: str) -> None:
    """Also pins dequantize to the table of values; scales above 247 overflow float32."""
    grid = magnitudes(element)
    largest = len(grid) - 1
    steps = np.concatenate([np.arange(largest), np.arange(1, largest)])  # both signs; -0 is no input's code
    negative = np.arange(len(steps)) >= largest
    steps, negative = (np.append(x, np.zeros(-len(x) % 31, x.dtype)) for x in (steps, negative))
    steps = np.pad(steps.reshape(-1, 31), ((0, 0), (0, 1)), constant_values=largest)  # each block has the largest code
    negative = np.pad(negative.reshape(-1, 31), ((0, 0), (0, 1)))
    count = len(steps)
    codes = np.tile(signed(steps, negative, element), (248, 1))
    scales = np.repeat(np.arange(248, dtype=np.uint8), count)[:, None].copy()
    values = dequantize(codes, scales, element)
    exact = np.tile(np.where(negative, -1.0, 1.0) * grid[steps], (248, 1)) * 2.0 ** (scales.astype(float) - 127)
    with np.errstate(over="ignore"):
        wanted = exact.astype(np.float32)
    np.testing.assert_array_equal(values.view(np.uint32), wanted.view(np.uint32))
    for rounding in ("even", "away"):
        again, again_scales = quantize(values, element, rounding)
        np.testing.assert_array_equal(again, codes)
        np.testing.assert_array_equal(again_scales, scales)


def test_the_signs_of_zero(isa: str) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [1.0, -0.0, -1e-30, 1e-30, -1e-45]
    codes, _ = quantize(x)
    assert codes[0, :6].tolist() == [28, 0, 32, 0, 32, 0]  # 1 = 16 * 2^-4, and 16 is code 28


@pytest.mark.parametrize(("element", "scale"), [("e3m2", 123), ("e2m3", 125), ("e2m1", 125), ("int8", 127)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_is_nan_and_its_neighbours_are_not(
    bad: float, element: str, scale: int, isa: str
) -> None:
    x = np.ones((2, 96), np.float32)
    x[1, 40] = bad
    codes, scales = quantize(x, element)
    assert scales.tolist() == [[scale] * 3, [scale, 255, scale]]
    assert not codes[1, 32:64].any()
    values = dequantize(codes, scales, element)
    assert np.isnan(values[1, 32:64]).all()
    assert (np.delete(values, np.s_[32:64], axis=1) == 1).all()


def test_int8_has_one_zero_and_no_minus_128(isa: str) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [-1.9999, 1.9999, -0.0, -1e-30, -1 / 64, -1.5 / 64]
    codes, scales = quantize(x, "int8")
    assert codes[0, :6].view(np.int8).tolist() == [-127, 127, 0, 0, -1, -2]
    assert scales.tolist() == [[127]]


def test_scale_255_makes_every_code_nan() -> None:
    codes = np.arange(64, dtype=np.uint8).reshape(2, 32)
    assert np.isnan(dequantize(codes, np.full((2, 1), 255, np.uint8))).all()


def test_threads_do_not_matter(isa: str) -> None:
    x = awkward(5, 3000, 160)
    one, three = quantize(x, threads=1), quantize(x, threads=3)
    np.testing.assert_array_equal(one[0], three[0])
    np.testing.assert_array_equal(one[1], three[1])


def test_flushing_of_subnormals_in_the_calling_thread_does_not_matter(isa: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is what sets the flag")
    x = np.random.default_rng(0).uniform(-(2.0**-130), 2.0**-130, (16, 64)).astype(np.float32)
    wanted = nearest_codes(x, "e3m2", "even")
    assert torch.set_flush_denormal(True)
    try:
        codes, scales = quantize(x, threads=1)
        values = dequantize(codes, scales)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(codes, wanted[0])
    np.testing.assert_array_equal(values.view(np.uint32), dequantize(codes, scales).view(np.uint32))
    assert values.any()


def ones(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.ones(shape, dtype)


def octets(*shape: int) -> NDArray[np.uint8]:
    return np.ones(shape, np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: quantize(ones(2, 32, dtype=np.float64)), TypeError, "values: got float64, expected an array of float"),
        (lambda: quantize([[1.0]]), TypeError, "values: got list, expected an array of float32"),
        (lambda: quantize(ones(32)), ValueError, r"values: got shape \[32\], expected a matrix"),
        (lambda: quantize(ones(0, 32)), ValueError, r"values: got shape \[0, 32\]"),
        (lambda: quantize(ones(32, 4).T), ValueError, "values: the array is not C-contiguous"),
        (
            lambda: quantize(ones(2, 32), "e3m3"),
            ValueError,
            r"element: got 'e3m3', expected one of e3m2, .*, int8 \(did",
        ),
        (lambda: quantize(ones(2, 32), rounding="nearest"), ValueError, "rounding: got 'nearest', expected one of"),
        (lambda: quantize(ones(2, 32), threads=0), ValueError, "threads: got 0, expected at least 1"),
        (lambda: dequantize(octets(2, 33), octets(2, 1)), ValueError, r"scales: got shape \[2, 1\], expected \[2, 2\]"),
        (lambda: dequantize(ones(2, 3, dtype=np.int8), octets(2, 1)), TypeError, "codes: got int8"),
        (lambda: dequantize(octets(1, 1) * 64, octets(1, 1)), ValueError, "dequantize: a code is above the largest"),
    ],
)
def test_bad_arguments_are_named(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXSPEC_ISA", "sse9")
    with pytest.raises(MxspecError, match=r"no instruction set: scalar, avx2, .*neon.* \(MXSPEC_ISA=sse9\)"):
        quantize(ones(1, 1))
