"""Measurements of small sizes and few repetitions: what the tests of `specbench` and of `python -m bench` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mxspec.evaluate.bench import calls
from mxspec.evaluate.bench.cli import main


@pytest.fixture
def specbench() -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.0)
    monkeypatch.setattr(calls, "CACHED", (8, 64))


@pytest.fixture
def in_the_middle_half() -> Callable[..., bool]:
    """Whether medians lie between their quartiles."""

    def check(row: dict[str, Any], *names: tuple[str, str]) -> bool:
        return all(row[quartiles][0] <= row[name] <= row[quartiles][1] for name, quartiles in names)

    return check
