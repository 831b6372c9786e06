"""bench/tables.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/tables.py, which no package holds, and its neighbours, which it imports."""
    place = Path(__file__).parents[2] / "bench" / "tables.py"
    monkeypatch.syspath_prepend(place.parent)
    spec = importlib.util.spec_from_file_location("tables", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
