"""Grids and block scales against the codec itself and against plain search."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.compile.weights.rounding.grid import Grid, best_exponents, pack_best, round_with, rule_exponents
from mxspec.formats.tiles import dequantize, quantize, unpack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS

FORMATS = [name for name, form in WEIGHT_FORMATS.items() if form.element]


def values_of(shape: tuple[int, int], seed: int = 0) -> NDArray[np.float32]:
    """Values of many magnitudes, with ties, zeros and a block of zeros."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
    values = values.astype(np.float16).astype(np.float32)
    values[:, ::7] = np.round(values[:, ::7] * 16) / 16
    values[0, :32] = 0
    return np.ascontiguousarray(values, np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_with_the_rules_exponents_is_what_the_codec_does(name: str) -> None:
    element = WEIGHT_FORMATS[name].element
    assert element is not None
    values, grid = values_of((24, 77)), Grid.of(name)
    codes, scales = quantize(values, element)
    exponents = rule_exponents(values, grid)
    np.testing.assert_array_equal(round_with(values, grid, exponents), dequantize(codes, scales, element))
    alive = scales > 0
    np.testing.assert_array_equal(exponents[alive], scales[alive].astype(np.int32) - 127)


@pytest.mark.parametrize("name", FORMATS)
def test_no_block_can_do_better_with_a_neighbouring_scale(name: str) -> None:
    values, grid = values_of((16, 64)), Grid.of(name)
    rule = rule_exponents(values, grid)

    def errors(exponents: NDArray[np.int32]) -> NDArray[np.float64]:
        error = (values - round_with(values, grid, exponents)).astype(np.float64)
        return np.square(error).reshape(16, 2, 32).sum(axis=2)

    least = np.min([errors(rule + step) for step in (-1, 0, 1)], axis=0)
    best = errors(best_exponents(values, grid))
    np.testing.assert_allclose(best, least, rtol=1e-5)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_packed_with_best_scales(name: str, transpose: bool) -> None:
    values, grid = values_of((40, 50)), Grid.of(name)
    given = np.ascontiguousarray(values.T) if transpose else values
    packed = pack_best(given.astype(np.float16), name, transpose, dtype="float16")
    exact = values.astype(np.float16).astype(np.float32)
    wanted = round_with(exact, grid, best_exponents(exact, grid))
    np.testing.assert_array_equal(unpack_values(packed.data, name, 40, 50), wanted)  # packing changed nothing
    assert packed.relative_error == pytest.approx(np.linalg.norm(wanted - exact) / np.linalg.norm(exact), rel=1e-5)


def test_values_that_are_not_finite_are_counted() -> None:
    values = values_of((16, 32))
    values[3, 4], values[5, 6] = np.inf, np.nan
    assert pack_best(values, FORMATS[0], dtype="float32").statistics.nonfinite == 2


def test_fp16_has_no_grid() -> None:
    with pytest.raises(ValueError, match="expected an MX format"):
        Grid.of("fp16_tiles")
