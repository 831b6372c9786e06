"""Graphs of our operators whose operands are all inputs, and calls of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mxspec.runtime import ops

Feeds = dict[str, NDArray[Any]]
FLOAT = TensorProto.FLOAT
ERRORS = ort.capi.onnxruntime_pybind11_state
WRONG_TYPE = (ERRORS.InvalidGraph, ERRORS.NotImplemented, ERRORS.Fail, ERRORS.InvalidArgument)


def open_nodes(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str], types: Mapping[str, int]
) -> ort.InferenceSession:
    """A session on nodes with operands of any shape, float32 unless `types` says otherwise; "" is no input."""
    values = [
        [helper.make_tensor_value_info(name, types.get(name, FLOAT), None) for name in names if name]
        for names in (inputs, outputs)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mxspec", 2)]
    model = helper.make_model(helper.make_graph(nodes, "nodes", *values), opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # the operators have threads of their own
    options.log_severity_level = 4  # errors reach us as exceptions, not as lines on standard error
    options.register_custom_ops_library(str(ops.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def open_node(
    operator: str,
    inputs: Sequence[str],
    outputs: Sequence[str] = ("out",),
    types: Mapping[str, int] | None = None,
    **attributes: Any,
) -> ort.InferenceSession:
    """A session on one operator of ours."""
    node = helper.make_node(operator, inputs, outputs, domain="mxspec", **attributes)
    return open_nodes([node], inputs, outputs, types or {})


def run_in_place(session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], own: str = "") -> Feeds:
    """The output of a call whose presents are bound to copies of its pasts, and these copies.

    own: a present that gets a buffer of its own instead.
    """
    arrays = {name: np.array(array) for name, array in feeds.items()}  # a value's memory is that of its array
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    outputs = [output.name for output in session.get_outputs()]
    for name in outputs:
        if name in ("output", own):
            binding.bind_output(name, "cpu")
        else:
            binding.bind_ortvalue_output(name, values[name.replace("present", "past")])
    session.run_with_iobinding(binding)
    found = dict(zip(outputs, binding.get_outputs(), strict=True))
    kept = {"output": found["output"].numpy().copy()} if "output" in found else {}
    return kept | {name: array for name, array in arrays.items() if name in ("past_key", "past_value")}
