"""Models as speccompile writes them, of every architecture that is tested, and what became of them as standard ONNX."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.interchange import standard
from mxspec.formats.manifest import ModelEntry
from tests.compile.outlined import written

EVERY_FORMAT = (
    ("*self_attn*", "mxfp6_e3m2"),
    ("*gate_proj*", "mxint8"),
    ("*up_proj*", "mxfp6_e2m3"),
    ("*down_proj*", "mxfp4_e2m1"),
)  # the head is fp16


@pytest.fixture(scope="session")
def written_model(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str, str], tuple[Path, ModelEntry]]:
    """Call it as tiny_export for a folder with graph and weights: read only. "every" is a format for each matrix."""

    @cache
    def write(name: str, weight_format: str, caches: str = "float32") -> tuple[Path, ModelEntry]:
        folder = tmp_path_factory.mktemp(f"{name}-{weight_format}")
        wanted = {"formats": EVERY_FORMAT} if weight_format == "every" else {"format": weight_format}
        with Checkpoint(tiny_checkpoint(name)[0]) as checkpoint:
            return folder, written(checkpoint, folder, 96, caches, **wanted)

    return write


@pytest.fixture(scope="session")
def standard_model(
    written_model: Callable[[str, str, str], tuple[Path, ModelEntry]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Call it as written_model, and with a type of scales, for the path of the standard graph."""

    @cache
    def emit(name: str, weight_format: str, caches: str = "float32", scales: standard.Scales = "e8m0") -> Path:
        source, entry = written_model(name, weight_format, caches)
        folder = tmp_path_factory.mktemp(f"{name}-{weight_format}-{scales}")
        plan = standard.plan_model(source, entry, scales)
        standard.write_model(plan, source, folder, lambda _: None)
        return folder / entry.graph

    return emit
