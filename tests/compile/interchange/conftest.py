"""Models as speccompile writes them, of every architecture that is tested, and what became of them as standard ONNX."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import name_parameters, resolve_names
from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.interchange import standard
from mxspec.compile.planning.layout import plan_weights
from mxspec.compile.planning.model import ModelPlan
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelEntry
from tests.compile.outlined import exported as export

EVERY_FORMAT = (
    ("*self_attn*", "mxfp6_e3m2"),
    ("*gate_proj*", "mxint8"),
    ("*up_proj*", "mxfp6_e2m3"),
    ("*down_proj*", "mxfp4_e2m1"),
)  # the head is fp16


@pytest.fixture(scope="session")
def written_model(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]],
    tiny_export: Callable[[str, str, str], ExportedGraph],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str, str], tuple[Path, ModelEntry]]:
    """Call it as tiny_export for a folder with graph and weights: read only. "every" is a format for each matrix."""

    @cache
    def write(name: str, weight_format: str, caches: str = "float32") -> tuple[Path, ModelEntry]:
        path, _ = tiny_checkpoint(name)
        if weight_format == "every":
            exported = export(load_config(path), 96, caches, formats=EVERY_FORMAT)
        else:
            exported = tiny_export(name, weight_format, caches)
            exported = replace(exported, model=exported.model.clone())
        folder = tmp_path_factory.mktemp(f"{name}-{weight_format}")
        with ExitStack() as files:
            checkpoint = files.enter_context(Checkpoint(path))
            tensors = checkpoint.tensors
            parameters = dict.fromkeys(source for spec in exported.weights for source in spec.sources)
            resolved = resolve_names(name_parameters(checkpoint.config), tensors, parameters)
            sources = {parameter: tensors[tensor] for parameter, tensor in resolved.tensor_of.items()}
            layout = plan_weights(exported.weights, sources)
            plan = ModelPlan("target", weight_format, exported, sources, resolved.ignored, layout, (1, 96))
            return folder, write_model(plan, folder, lambda _: None).entry

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
