"""Error-compensated rounding against GPTQ as its paper writes it, in float64 with the inverse of the moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mxspec.compile.weights.rounding.grid import Grid, powers, round_with, rule_exponents
from mxspec.compile.weights.rounding.matrix import compensate, compensate_under
from mxspec.compile.weights.rounding.moments import DAMPING, Moments, UnfactoredError
from mxspec.formats.tiles import pack_values, unpack_values

FORMAT = "mxfp6_e3m2"
Float32 = NDArray[np.float32]


def correlated_inputs(rows: int, k: int, seed: int = 0) -> Float32:
    """Inputs whose columns depend on one another and are of very different size, one of them always zero."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((k, k)) * np.exp(rng.standard_normal(k))
    inputs = (rng.standard_normal((rows, k)) @ mixing + rng.standard_normal((rows, k))).astype(np.float32)
    inputs[:, k // 3] = 0
    return inputs


def moments_of(inputs: Float32) -> Moments:
    moments = Moments(inputs.shape[1])
    for part in np.array_split(inputs, 3):
        moments.add(torch.from_numpy(part)[None])
    return moments


def units(inputs: Float32) -> NDArray[np.float64]:
    """The rows in float64, each of length one."""
    exact = inputs.astype(np.float64)
    return exact / np.linalg.norm(exact, axis=1, keepdims=True)


def by_definition(values: Float32, exponents: NDArray[np.int32], inputs: Float32) -> NDArray[np.float64]:
    """Frantar et al. 2022, equations 2 and 3: round a column, move all left by its error, remove it from H^-1."""
    grid = Grid.of(FORMAT)
    scale, inverse = powers(exponents)
    hessian = units(inputs).T @ units(inputs)
    order = np.argsort(hessian.diagonal(), kind="stable")[::-1]
    hessian += DAMPING * hessian.diagonal().mean() * np.eye(len(hessian))
    moved, rounded = values.astype(np.float64), np.empty(values.shape)
    left = list(order)
    while left:
        column = left[0]
        inverse_hessian = np.linalg.inv(hessian[np.ix_(left, left)])
        block = column // 32
        unit = (moved[:, column] * inverse[:, block]).astype(np.float32)
        rounded[:, column] = grid.round(unit) * scale[:, block]
        error = (moved[:, column] - rounded[:, column]) / inverse_hessian[0, 0]
        moved[:, left] -= np.outer(error, inverse_hessian[0])
        left.pop(0)
    return rounded


@pytest.fixture
def case() -> tuple[Float32, Float32]:
    """A matrix [n, k] and inputs [rows, k]."""
    rng = np.random.default_rng(1)
    return (rng.standard_normal((37, 70)) * 0.1).astype(np.float32), correlated_inputs(300, 70)


@pytest.mark.parametrize("columns", [16, 128])
def test_equals_the_papers_definition(
    case: tuple[Float32, Float32], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxspec.compile.weights.rounding.matrix.COLUMNS", columns)
    values, inputs = case
    exponents = rule_exponents(values, Grid.of(FORMAT))
    rounded = compensate_under(exponents, values, Grid.of(FORMAT), moments_of(inputs).factor())
    expected = by_definition(values, exponents, inputs)
    # A value at the border of two numbers may fall to the other in float32, and moves what comes after it in its row.
    same_rows = (rounded == expected).all(axis=1)
    assert same_rows.mean() > 0.9
    assert output_error(values, rounded, inputs) == pytest.approx(
        output_error(values, expected.astype(np.float32), inputs), rel=0.01
    )


def output_error(values: Float32, rounded: Float32, inputs: Float32) -> float:
    return float(np.linalg.norm(units(inputs) @ (values - rounded).T.astype(np.float64)))


def test_the_error_of_the_outputs_falls_and_the_bytes_stay_plain(case: tuple[Float32, Float32]) -> None:
    values, inputs = case
    grid = Grid.of(FORMAT)
    exponents = rule_exponents(values, grid)
    rounded = compensate_under(exponents, values, grid, moments_of(inputs).factor())
    nearest = round_with(values, grid, exponents)
    assert output_error(values, rounded, inputs) < 0.7 * output_error(values, nearest, inputs)
    np.testing.assert_array_equal(round_with(rounded, grid, exponents), rounded)  # on the grid of the scales given
    packed = pack_values(rounded, FORMAT)
    np.testing.assert_array_equal(unpack_values(packed.data, FORMAT, *values.shape), rounded)
    assert packed.statistics.squared_error == 0


def test_a_factor_larger_than_a_panel_gives_the_moments_back() -> None:
    inputs = correlated_inputs(700, 600)
    exact = units(inputs).T @ units(inputs)
    factor = moments_of(inputs).factor()
    exact += DAMPING * exact.diagonal().mean() * np.eye(600)
    lower = np.tril(factor.lower.astype(np.float64))
    wanted = exact[np.ix_(factor.order, factor.order)]
    np.testing.assert_allclose(lower @ lower.T, wanted, atol=2e-5 * wanted.diagonal().max())
    assert (np.diff(wanted.diagonal()) >= -1e-3).all()  # the largest come last


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (np.zeros((5, 8), np.float32), "all zero"),
        (np.full((5, 8), np.nan, np.float32), "not finite"),
        (np.full((5, 8), 1e30, np.float32), "not finite"),
    ],
)
def test_moments_without_a_factor_are_refused(inputs: Float32, reason: str) -> None:
    with pytest.raises(UnfactoredError, match=reason):
        moments_of(inputs).factor()


def moved(values: Float32, exact: Float32, rounded: Float32) -> Float32:
    """The matrix as its factor moves it."""
    k = values.shape[1]
    moments = Moments(k, drift=np.zeros((k, k), np.float32))
    for ours, theirs in zip(np.array_split(rounded, 3), np.array_split(exact, 3), strict=True):
        moments.add(torch.from_numpy(ours), torch.from_numpy(theirs))
    return moments.factor().shift(values)


def moved_in_float64(values: Float32, exact: Float32, rounded: Float32) -> NDArray[np.float64]:
    """Ridge regression: W' minimises |W x - W' y|^2 / |y|^2 + damping |W' - W|^2 over exact x and rounded y."""
    lengths = np.linalg.norm(rounded.astype(np.float64), axis=1, keepdims=True)
    penalty = np.sqrt(DAMPING * len(rounded) / values.shape[1]) * np.eye(values.shape[1])
    wanted = np.concatenate([exact / lengths @ values.T, penalty @ values.T])
    found: NDArray[np.float64] = np.linalg.lstsq(np.concatenate([rounded / lengths, penalty]), wanted)[0].T
    return found


def test_a_matrix_is_moved_to_what_its_inputs_would_have_given() -> None:
    rng = np.random.default_rng(2)
    values = (rng.standard_normal((9, 70)) * 0.1).astype(np.float32)
    rounded = correlated_inputs(300, 70)
    exact = (rounded + 0.1 * rounded.std() * rng.standard_normal(rounded.shape)).astype(np.float32)
    result = moved(values, exact, rounded)
    np.testing.assert_allclose(result, moved_in_float64(values, exact, rounded), atol=2e-4)
    assert np.abs(result - values).max() > 0.01


def test_a_few_massive_activations_do_not_move_a_matrix_away_from_all_other_tokens() -> None:
    """One token in a hundred is a thousand times as large as the others in two columns, and drifts by one percent."""
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((9, 70)) * 0.1).astype(np.float32)
    rounded = rng.standard_normal((1600, 70)).astype(np.float32)
    exact = (rounded + 0.03 * rng.standard_normal(rounded.shape)).astype(np.float32)
    massive = np.zeros((16, 70), np.float32)
    massive[:, :2] = rng.uniform(2000, 4000, (16, 1)) * [0.9, 0.4]
    rounded[::100] += massive
    exact[::100] += massive + 0.01 * 3000 * rng.standard_normal((16, 70)).astype(np.float32)
    result = moved(values, exact, rounded)
    np.testing.assert_allclose(result, moved_in_float64(values, exact, rounded), atol=1e-5)
    plain = np.arange(1600) % 100 != 0
    loss, unmoved = (np.linalg.norm(exact[plain] @ values.T - rounded[plain] @ matrix.T) for matrix in (result, values))
    assert loss < 1.05 * unmoved


def test_blocks_take_the_best_of_three_exponents(case: tuple[Float32, Float32]) -> None:
    values, inputs = case
    grid, factor = Grid.of(FORMAT), moments_of(inputs).factor()
    chosen = compensate(values, grid, factor)
    by_rule = compensate_under(rule_exponents(values, grid), values, grid, factor)
    assert output_error(values, chosen, inputs) < 0.99 * output_error(values, by_rule, inputs)
    packed = pack_values(chosen, FORMAT)
    np.testing.assert_array_equal(unpack_values(packed.data, FORMAT, *values.shape), chosen)
