"""The experts of a mixture in standard operators, beside the operator itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from mxspec.compile.interchange.lowering import lower
from mxspec.compile.interchange.lowering.nodes import Call, WeightMatrix
from tests.runtime.ops.test_experts_op import BIASES, Floats, Ids, Layer, formats_of, layer_of, routing


def lowered(layer: Layer, activation: str, biases: tuple[str, ...], attributes: dict[str, float]) -> ReferenceEvaluator:
    """The layer's node in standard operators, its matrices as float16."""
    x, chosen, weights = (
        ir.Value(name=name, type=ir.TensorType(dtype))
        for name, dtype in (("x", ir.DataType.FLOAT), ("chosen", ir.DataType.INT64), ("weights", ir.DataType.FLOAT))
    )
    packed = [ir.Value(name=name) for name in ("gate_up", "down")]
    values = (layer.gate_up_values, layer.down_values)
    stored = [
        initializer(f"{name}.values", v.reshape(-1, v.shape[2]).astype(np.float16))
        for name, v in zip(("gate_up", "down"), values, strict=True)
    ]
    added = {name: initializer(name, layer.biases[name]) for name in biases}
    node = ir.node(
        "PackedExperts",
        [x, chosen, weights, *packed, *(added.get(name) for name in BIASES)],
        {"activation": activation, **layer.sizes.attributes, **formats_of("fp16_tiles", "fp16_tiles"), **attributes},
        domain="mxspec",
    )
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(
        [x, chosen, weights],
        node.outputs,
        nodes=[node],
        initializers=[*stored, *added.values()],
        opset_imports={"": 21, "mxspec": 2},
    )
    model = ir.Model(graph, ir_version=10)
    matrices = {"gate_up": WeightMatrix(stored[0], None), "down": WeightMatrix(stored[1], None)}
    lower(model, Call(matrices, x, {}, 1, 4, grouped=False, cache_dtype=ir.DataType.FLOAT))
    del graph.opset_imports["mxspec"]
    return ReferenceEvaluator(ir.to_proto(model))


def initializer(name: str, values: np.ndarray[Any, Any]) -> ir.Value:
    tensor = ir.tensor(values, name=name)
    return ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))


def difference(layer: Layer, standard: ReferenceEvaluator, x: Floats, chosen: Ids, weights: Floats) -> float:
    """Of the largest value."""
    (got,) = standard.run(None, {"x": x, "chosen": chosen, "weights": weights})
    wanted = layer(x, chosen, weights)
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("biases", [(), BIASES, BIASES[1:]])
@pytest.mark.parametrize(
    ("activation", "attributes"),
    [
        ("silu", {}),
        ("gelu_tanh", {"alternating": 1}),
        ("clamped_swiglu", {}),
        ("clamped_swiglu", {"alternating": 1, "alpha": 0.5, "limit": 1.25}),
    ],
)
def test_experts_equal_the_operator(activation: str, attributes: dict[str, Any], biases: tuple[str, ...]) -> None:
    layer = layer_of("fp16_tiles", activation, biases=biases, **attributes)
    standard = lowered(layer, activation, biases, attributes)
    x, chosen, weights = routing(24, layer.sizes)  # some of the experts are chosen twice
    assert any(len(set(row)) < len(row) for row in chosen.tolist())
    assert difference(layer, standard, x, chosen, weights) < 1e-5
    shape = (2, 12)
    batch = (array.reshape(*shape, -1) for array in (x, chosen, weights))
    assert difference(layer, standard, *batch) < 1e-5


def test_an_expert_that_was_not_chosen_may_overflow() -> None:
    layer = layer_of("fp16_tiles")
    layer.biases["down_bias"][3] = np.inf
    standard = lowered(layer, "silu", BIASES, {})
    x, chosen, weights = routing(24, layer.sizes)
    assert difference(layer, standard, x, np.where(chosen == 3, 2, chosen), weights) < 1e-5
