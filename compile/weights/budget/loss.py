"""The loss of a matrix in each of its formats, in nats a token, from its inputs and its outputs' gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.weights.rounding.grid import Grid, best_exponents, round_with, rule_exponents
from mxspec.compile.weights.rounding.matrix import compensate
from mxspec.compile.weights.rounding.moments import Factor
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import Rounding

ROWS = 1024  # rows of gradient at a time: with 11,008 columns it takes 45 MB, as does each format's error

Values = NDArray[np.float32]
Read = Callable[[int, int], Values]  # rows of a matrix [n, k]
Windows = Values | Sequence[Values]
Errors = Mapping[str, Values]  # by format


def layer_losses(inputs: Windows, gradients: Windows, errors: Iterator[Errors], tokens: int) -> dict[str, float]:
    """Losses of a matrix inside a layer: 1/2 of the sum of (G_r . E_r)^2 over rows r and windows, a token, by format.

    A window's `inputs` float32[rows, k] and `gradients` float32[rows, n] of the labels' log probability give its
    G [n, k]; `errors` yields E, some rows at a time. All windows together have `tokens` tokens.
    """
    sums: dict[str, float] = {}
    begin = 0
    for pieces in errors:
        end = begin + len(next(iter(pieces.values())))
        for read, worth in zip(inputs, gradients, strict=True):
            gradient = np.ascontiguousarray(worth[:, begin:end]).T @ read
            for name, error in pieces.items():
                moved = np.einsum("nk,nk->n", gradient, error)
                sums[name] = sums.get(name, 0.0) + 0.5 * float(np.vdot(moved, moved))
        begin = end
    return {name: total / tokens for name, total in sums.items()}


def head_losses(inputs: Values, gradients: Values, errors: Iterator[Errors]) -> dict[str, float]:
    """Losses of the head, by format: 1/2 of the mean of (g_t . E x_t)^2 over tokens t, each with its own logits.

    This is exact to second order, because it does not assume independent rows: those of a softmax are dependent.
    """
    moved: dict[str, NDArray[np.float64]] = {}
    begin = 0
    for pieces in errors:
        end = begin + len(next(iter(pieces.values())))
        for name, error in pieces.items():
            sums = moved.setdefault(name, np.zeros(inputs.shape[:2]))
            for window, (read, worth) in enumerate(zip(inputs, gradients, strict=True)):
                sums[window] += np.einsum("tn,tn->t", worth[:, begin:end], read @ error.T)
        begin = end
    return {name: 0.5 * float(np.mean(np.square(sums))) for name, sums in moved.items()}


def lookup_loss(ids: NDArray[np.int64], gradients: Values, moved: Iterator[Values]) -> float:
    """The loss of a table whose rows are looked up: 1/2 of the sum of (G_r . E_r)^2 over rows r and windows, a token.

    `ids` int64[windows, length]; `gradients` float32[windows, length, width] are those of the first layer's input;
    `moved` yields the change of this input by rounding, window by window.
    """
    total = 0.0
    for tokens, worth, by in zip(ids, gradients, moved, strict=True):
        _, rows = np.unique(tokens, return_inverse=True)
        sums = np.bincount(rows, weights=np.einsum("tk,tk->t", worth, by))
        total += 0.5 * float(np.vdot(sums, sums))
    return total / ids.size


def rounding_errors(
    read: Read, n: int, formats: Sequence[str], rounding: Rounding, factor: Factor | None
) -> Iterator[Errors]:
    """Yield the rounding errors of a matrix of n rows in each of its MX formats, ROWS rows at a time."""
    for begin in range(0, n, ROWS):
        values = read(begin, min(begin + ROWS, n))
        yield {name: round_as(values, name, rounding, factor) - values for name in formats}


def round_as(values: Values, format_name: str, rounding: Rounding, factor: Factor | None) -> Values:
    """float32[n, k] rounded to an MX format; to nearest if `gptq` has no factor."""
    grid = Grid.of(format_name)
    if rounding == "scale":
        return round_with(values, grid, best_exponents(values, grid))
    if factor is None:
        return round_with(values, grid, rule_exponents(values, grid))
    return compensate(values, grid, factor)


def lossy(formats: Sequence[str]) -> list[str]:
    """The formats that round; fp16 counts as lossless."""
    return [name for name in formats if name != FP16_TILES]
