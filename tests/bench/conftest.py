"""Measurements of small sizes and few repetitions, through click's runner."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from bench.__main__ import main
from bench.documents import tables as tables_of_documents
from bench.kernels import experts as experts_bench
from bench.kernels import ops as ops_bench
from tests.measured import in_the_middle_half, short_calls, specbench

__all__ = ["in_the_middle_half", "short_calls", "specbench"]

Run = Callable[..., Result]


@pytest.fixture
def laboratory() -> Run:
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


@pytest.fixture
def tables() -> ModuleType:
    """bench/documents/tables.py."""
    return tables_of_documents


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_bench, "BEYOND_CACHES", 1 << 16)
    monkeypatch.setattr(ops_bench, "SHAPE", (64, 96))
    monkeypatch.setattr(ops_bench, "CACHED", (4, 32))
    monkeypatch.setattr(ops_bench, "PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(
        experts_bench, "LAYERS", (experts_bench.ExpertsLayer("tiny", 6, 2, 64, 32, 48, "clamped_swiglu"),)
    )
