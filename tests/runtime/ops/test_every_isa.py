"""The same bits on every instruction set: one process for each makes all calls of fixed_calls.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.runtime import ops
from tests.runtime.ops.fixed_calls import OPERATORS

Outputs = dict[str, NDArray[Any]]


def run_on(isa: str, path: Path) -> subprocess.CompletedProcess[str]:
    """All calls on an instruction set; the operators choose one themselves where its name is empty."""
    command = [sys.executable, "-m", "tests.runtime.ops.fixed_calls", str(path)]
    return subprocess.run(command, env=os.environ | {"MXSPEC_ISA": isa}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def outputs_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outputs]:
    """Call it with an instruction set for what all calls give on it."""

    @cache
    def outputs(isa: str) -> Outputs:
        path = tmp_path_factory.mktemp("isa") / "outputs.npz"
        result = run_on(isa, path)
        assert result.returncode == 0, result.stderr
        with np.load(path) as stored:
            return dict(stored)

    return outputs


@pytest.mark.parametrize("isa", ops.available_isas())
@pytest.mark.parametrize("operators", OPERATORS)
def test_same_bits_on_every_isa(operators: str, isa: str, outputs_on: Callable[[str], Outputs]) -> None:
    expected, got = outputs_on(""), outputs_on(isa)
    assert set(got) == set(expected)
    names = [name for name in expected if name.startswith(f"{operators}/")]
    assert len(names) >= 2
    for name in names:
        assert got[name].tobytes() == expected[name].tobytes(), name


def test_the_process_has_the_bits_of_this_one(outputs_on: Callable[[str], Outputs]) -> None:
    stored = outputs_on("")
    for operators, module in OPERATORS.items():
        for name, array in dict(module.fixed_calls()).items():
            assert stored[f"{operators}/{name}"].tobytes() == array.tobytes(), name


def test_unknown_isa_is_an_error(tmp_path: Path) -> None:
    result = run_on("sse9", tmp_path / "outputs.npz")
    known = "scalar, avx2, avxvnni, avx512, avx512vnni, avx512vbmi, amx, neon, neondot"
    assert f"MXSPEC_ISA: got sse9, expected one of {known}" in result.stderr
    assert result.returncode == 1
