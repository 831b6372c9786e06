"""Choices of experts: in the order of rank, equal scores by the lower index, and by each row alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from mxspec.compile.passes.contract import check_graph
from mxspec.compile.passes.routers import pack_routers
from mxspec.formats.errors import UnsupportedModelError


def choice(experts: int, chosen: int) -> ir.Model:
    """A graph of one choice in any order, as GLM-4.5's."""
    node = helper.make_node("TopK", ["scores", "count"], ["values", "indices"], axis=-1, sorted=0)
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["tokens", experts])
    indices = helper.make_tensor_value_info("indices", TensorProto.INT64, ["tokens", chosen])
    count = helper.make_tensor("count", TensorProto.INT64, [1], [chosen])
    graph = helper.make_graph([node], "choice", [scores], [indices], [count])
    return ir.serde.deserialize_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    )


@pytest.mark.parametrize(("experts", "chosen"), [(4, 2), (8, 8), (32, 4), (64, 8), (128, 8), (160, 6), (256, 8)])
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_equal_scores_are_resolved_by_the_lower_index(experts: int, chosen: int, rows: int) -> None:
    model = choice(experts, chosen)
    pack_routers(model, {})
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    scores = np.random.default_rng(0).integers(0, 4, (rows, experts)).astype(np.float32)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :chosen]
    np.testing.assert_array_equal(session.run(["indices"], {"scores": scores})[0], expected)


@pytest.mark.parametrize(("axis", "passes"), [(-1, True), (1, True), (0, False)])
def test_a_softmax_over_several_rows_is_refused(axis: int, passes: bool) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=axis)], "softmax", [x], [y])
    model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    if passes:
        check_graph(model, "Mixture", ["x"], ["y"])
        return
    with pytest.raises(UnsupportedModelError, match="1 Softmax, which no pass could replace"):
        check_graph(model, "Mixture", ["x"], ["y"])
