"""Bundles with a baseline, the fp16 target beside the packed one; and bench/tables.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from mxspec.compile.pipeline import compile_bundle
from mxspec.compile.progress import Stages
from mxspec.recipes.recipe import Recipe


@pytest.fixture(scope="session")
def demo_with_baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `speccompile demo --with-baseline` makes."""
    output = tmp_path_factory.mktemp("demo") / "demo.bundle"
    recipe = Recipe.load(Path(__file__).resolve().parents[2] / "recipes" / "demo.toml")
    compile_bundle(recipe, output, with_baseline=True, force=False, stages=Stages(Console(quiet=True)))
    return output


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
