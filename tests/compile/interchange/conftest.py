"""Models as speccompile writes them, of every architecture that is tested, and what became of them as standard ONNX."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from mxspec.compile.interchange import standard
from mxspec.compile.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe

Written = Callable[[str, str, str], tuple[Path, ModelEntry]]


@pytest.fixture(scope="session")
def written_model(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path_factory: pytest.TempPathFactory
) -> Written:
    """Call it with a name of TINY, a weight format and a cache type for a folder with graph and weights; read only."""

    @cache
    def write(name: str, weight_format: str, cache_dtype: str) -> tuple[Path, ModelEntry]:
        path, _ = tiny_checkpoint(name)
        folder = tmp_path_factory.mktemp(f"{name}-{weight_format}")
        target = TargetRecipe(checkpoint=str(path), format=weight_format)
        recipe = Recipe(name=name, k_max=4, cache_dtype=cache_dtype, target=target, draft=DraftRecipe(checkpoint="x"))
        with ExitStack() as files:
            plan = plan_model("target", path, target, recipe, 96, files)
            return folder, write_model(plan, folder, lambda _: None).entry

    return write


@pytest.fixture(scope="session")
def standard_model(written_model: Written, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Call it as written_model, and with a type of scales, for the path of the standard graph."""

    @cache
    def emit(name: str, weight_format: str, cache_dtype: str = "float32", scales: str = "e8m0") -> Path:
        source, entry = written_model(name, weight_format, cache_dtype)
        folder = tmp_path_factory.mktemp(f"{name}-{weight_format}-{scales}")
        plan = standard.plan_model(source, entry, scales)
        standard.write_model(plan, source, folder, lambda _: None)
        return folder / entry.graph

    return emit
