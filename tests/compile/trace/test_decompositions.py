"""Graphs that were not traced again are those that torch decomposes, but for the names of values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch.export import ExportedProgram
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.compile.planning import export_graph as exporting
from mxspec.compile.trace import trace as tracing
from mxspec.compile.trace.trace import decompose_quickly
from tests.compile import outlined

Checkpoints = Callable[[str], tuple[Path, PreTrainedModel]]


def described(graph: ir.Model, weights: dict[str, object]) -> list[object]:
    """Every node, weight and constant in order; other values are numbered as they appear."""
    numbers: defaultdict[ir.Value, int] = defaultdict(count().__next__)

    def name(value: ir.Value | None) -> object:
        if value is None or value.is_graph_input() or value.name in weights:
            return value and value.name
        constant = None if value.const_value is None else value.const_value.tobytes()
        return numbers[value], value.dtype, str(value.shape), constant

    nodes = [
        (node.op_identifier(), [*map(name, node.inputs)], [*map(name, node.outputs)], str(dict(node.attributes)))
        for node in graph.graph
    ]
    return [nodes, [name(value) for value in graph.graph.outputs]]


def exported(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], int]:
    """A description of what is exported without kept graphs, and how often torch traced a program again."""
    traced: list[ExportedProgram] = []
    whole = ExportedProgram.run_decompositions

    def run(program: ExportedProgram, *arguments: Any, **settings: Any) -> ExportedProgram:
        traced.append(program)
        return whole(program, *arguments, **settings)

    config = load_config(path)
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "trace", tracing.trace)
        patch.setattr(ExportedProgram, "run_decompositions", run)
        found = outlined.exported(config, 96, "float32")
    sources = {spec.name: spec.sources for spec in found.weights if spec.value is None}
    values = [spec.value.tobytes() for spec in found.weights if spec.value is not None]
    graphs = [found.model, *([found.encoder.model] if found.encoder else [])]
    return [sorted(sources.items()), sorted(values), *(described(each, {**sources}) for each in graphs)], len(traced)


# T5's decoder and encoder are two programs. Falcon's attention adds in place.
@pytest.mark.parametrize(
    ("name", "programs", "again"), [("gpt2-untied", 1, 0), ("gpt_oss", 1, 0), ("t5", 2, 0), ("falcon-one", 1, 1)]
)
def test_the_graph_is_the_one_that_torch_decomposes(
    name: str, programs: int, again: int, tiny_checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = tiny_checkpoint(name)
    quick, traced = exported(path, monkeypatch)
    assert traced == again
    monkeypatch.setattr(tracing, "decompose_quickly", lambda _: None)
    assert exported(path, monkeypatch) == (quick, programs)


class ConvertedOutput(torch.nn.Module):
    """Gives what a conversion that changes nothing gives."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).to(torch.float32), x + 1


class ReshapedTranspose(torch.nn.Module):
    """Reshapes values that have no view of the new shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(-1) + 1


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("module", [ConvertedOutput(), ReshapedTranspose()])
def test_what_cannot_be_taken_out_is_left_to_torch(module: torch.nn.Module) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    program = torch.export.export(module, (values,))
    decompose_quickly(program)
    decomposed = program.run_decompositions({})
    outputs = {output.arg.name for output in decomposed.graph_signature.output_specs}
    assert outputs <= {node.name for node in decomposed.graph.nodes}
    found, expected = decomposed.module()(values), module(values)
    assert torch.equal(torch.cat([*map(torch.atleast_1d, found)]), torch.cat([*map(torch.atleast_1d, expected)]))
