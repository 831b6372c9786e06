"""Work in multiplications: what a recipe's minutes allow, and how long it takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from mxspec.recipes.recipe import Recipe

A_MINUTE = 2.4e12
"""Multiplications of a recipe's minute, about what two cores do. A fixed number, so that no other work on a machine
changes what a compile makes."""
FEWEST_TOKENS = 2048
"""Fewer are not tried unasked. On 1,024 tokens of its own, SmolLM2 in E3M2 lost 7.1 %; to nearest it loses 21 %."""
EFFICIENCY = 0.5
"""Rounding and reading take about twice as long as their multiplications in one large matrix product."""
_SIZE = 768  # rows and columns of the product that is timed
_SECONDS = 0.1  # that it is timed for


def minutes_of(multiplications: float) -> float:
    """The minutes of a recipe that this work takes, the same on every machine."""
    return multiplications / A_MINUTE


def affordable_tokens(recipe: Recipe, work: Callable[[int], float]) -> int:
    """As many of the recipe's `calibration_tokens` as its minutes allow, 0 if that is fewer than FEWEST_TOKENS.

    `work` gives the multiplications for a number of tokens; it grows by the same number with each token.
    """
    beginning = work(0)
    affordable = int((recipe.rounding_minutes * A_MINUTE - beginning) / (work(1) - beginning))
    enough = min(FEWEST_TOKENS, recipe.calibration_tokens)
    return min(recipe.calibration_tokens, affordable) if affordable >= enough else 0


def seconds_of(multiplications: float) -> float:
    """How long this work takes here in float32, about, while the machine is as busy as now."""
    matrix = torch.ones(_SIZE, _SIZE)
    matrix @ matrix
    began, count, passed = time.perf_counter(), 0, 0.0
    while passed < _SECONDS:
        matrix @ matrix
        count += 1
        passed = time.perf_counter() - began
    return multiplications * passed / (count * _SIZE**3 * EFFICIENCY)
