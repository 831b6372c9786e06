"""Bundles with a baseline: the fp16 target beside the packed one."""

from __future__ import annotations

from pathlib import Path

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
