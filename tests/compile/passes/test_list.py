"""All passes together: what they make of a graph, and that a finished graph leaves nothing to do."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.passes import run_passes
from mxspec.compile.passes.fusions import fuse_projections
from mxspec.compile.passes.tidying import sweep, take_values_out

GRAPH = """
<ir_version: 10, opset_import: ["" : 23, "mxspec" : 2]>
gated (float[1,t,32] x, uint8[2,1024] gate_weight, uint8[2,1024] up_weight) => (float[1,t,32] y)
<float[1,t,32] gate, float[1,t,32] up, float[1,t,32] dead, float[1,t,32] squashed, float[1,t,32] activated>
{
    gate = mxspec.PackedMatMul <K = 32, N = 32, format = "fp16_tiles"> (x, gate_weight)
    up = mxspec.PackedMatMul <K = 32, N = 32, format = "fp16_tiles"> (x, up_weight)
    dead = Relu (up)
    squashed = Sigmoid (gate)
    activated = Mul (gate, squashed)
    y = Mul (activated, up)
}
"""


def gated() -> tuple[ir.Model, dict[str, WeightSpec]]:
    """A gated unit of two products, whose weights are initializers without a value, and a node that nobody reads."""
    model = ir.from_onnx_text(GRAPH)
    specs = {}
    for value, name in zip(list(model.graph.inputs)[1:], ("a.gate.weight", "a.up.weight"), strict=True):
        model.graph.inputs.remove(value)
        value.name = name
        model.graph.initializers.add(value)
        specs[name] = WeightSpec(name, "matmul", "fp16_tiles", (32, 32), (name,))
    return model, specs


def test_a_graph_is_fused_and_a_second_run_changes_nothing() -> None:
    model, specs = gated()
    run_passes(model, specs)
    assert [node.op_type for node in model.graph] == ["PackedMatMul", "SwiGLU"]
    assert list(model.graph.initializers) == ["a.gate+up.weight"]
    assert specs["a.gate+up.weight"].shape == (64, 32)
    before = ir.to_proto(model).SerializeToString()
    run_passes(model, specs)
    assert ir.to_proto(model).SerializeToString() == before


def test_leftovers_stay_until_they_are_swept() -> None:
    model, specs = gated()
    fuse_projections(model, specs)
    assert "Relu" in {node.op_type for node in model.graph}
    sweep(model)
    assert "Relu" not in {node.op_type for node in model.graph}


def test_an_initializer_without_a_spec_is_a_mistake() -> None:
    model, specs = gated()
    del specs["a.up.weight"]
    with pytest.raises(AssertionError, match=r"no parameters or buffers: \['a.up.weight'\]"):
        run_passes(model, specs)


def test_small_constants_get_their_values_and_large_ones_none() -> None:
    model, specs = gated()
    for name, size in (("small", 64), ("large", 65)):
        value = np.ones(size, np.float32)
        model.graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(value * 0, name=name)))
        specs[name] = WeightSpec(name, "constant", "float32", (size,), value=value)
    take_values_out(model, specs)
    small, large = (model.graph.initializers[name].const_value for name in ("small", "large"))
    assert small is not None
    assert small.numpy().all()
    assert large is None
