"""A graph that is made of another one's trace is the one that is traced."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
from transformers import AutoConfig

from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.planning import export_graph as exporting
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.compile.trace.interface import GraphInterface
from mxspec.compile.trace.trace import (
    Traces,
    trace,  # not the tests' own, which keeps a graph for all formats
)
from tests.compile.outlined import outlined

SIZES = {"num_hidden_layers": 1, "vocab_size": 120, "tie_word_embeddings": True}
MODELS: dict[str, tuple[dict[str, Any], str, int]] = {  # with products of another format, and the number of graphs
    "llama": ({**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}, "*.o_proj.weight", 1),
    "t5": ({**SIZES, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_heads": 4}, "*.o.weight", 2),
}


def described(exported: ExportedGraph) -> list[bytes]:
    graphs = [exported.model, *([exported.encoder.model] if exported.encoder else [])]
    for graph in graphs:
        for value in graph.graph.initializers.values():
            value.const_value = None
        for node in graph.graph:
            node.name = None  # the passes number their own
    weights = [(spec, None if spec.value is None else spec.value.tobytes()) for spec in exported.weights]
    return [*(ir.to_proto(graph).SerializeToString() for graph in graphs), repr(weights).encode()]


@pytest.mark.parametrize("model_type", MODELS)
def test_formats_are_set_after_the_trace(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, output, graphs = MODELS[model_type]
    config = AutoConfig.for_model(model_type, **settings)
    traced: list[GraphInterface] = []
    monkeypatch.setattr(exporting, "trace", lambda interface: traced.append(interface) or trace(interface))

    def export(weight_format: str, traces: Traces | None = None) -> list[bytes]:
        wanted = {"format": weight_format, "formats": ((output, "mxfp4_e2m1"),)}
        model = outlined(config, **wanted, activations="int8" if weight_format == "mxfp6_e2m3" else "int16")
        model.traces = traces or Traces()
        return described(plan_without_weights(model).exported)

    shared = Traces()
    packed, plain = export("mxfp6_e2m3", shared), export("fp16_tiles", shared)
    assert export("mxfp6_e2m3", shared) == packed
    assert packed != plain
    assert len(traced) == graphs
    assert export("fp16_tiles") == plain
