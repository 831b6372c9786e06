"""Bundles with a baseline, the fp16 target beside the packed one; and bench/tables.py."""

from __future__ import annotations

import importlib.util
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
def tables() -> ModuleType:
    """bench/tables.py, which no package holds."""
    spec = importlib.util.spec_from_file_location("tables", Path(__file__).parents[2] / "bench" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
