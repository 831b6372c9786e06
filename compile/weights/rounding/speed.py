"""How long a number of multiplications takes on this machine."""

from __future__ import annotations

import time

import torch

EFFICIENCY = 0.5
"""Rounding and reading take about twice as long as their multiplications in one large matrix product."""
_SIZE = 768  # rows and columns of the product that is timed
_SECONDS = 0.1  # that it is timed for


def seconds_of(multiplications: int) -> float:
    """About how long so many multiplications take in float32, while the machine is as busy as now."""
    matrix = torch.ones(_SIZE, _SIZE)
    matrix @ matrix
    began, count, passed = time.perf_counter(), 0, 0.0
    while passed < _SECONDS:
        matrix @ matrix
        count += 1
        passed = time.perf_counter() - began
    return multiplications * passed / (count * _SIZE**3 * EFFICIENCY)
