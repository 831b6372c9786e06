"""Graphs of many nodes of one kind, as a call of one row has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bench.shapes.known import Shape
from mxspec.compile.graph.operators import ADD_RMS_NORM, DOMAIN, OPSET, QKV_ATTENTION, SWIGLU, Operator
from mxspec.compile.passes.tidying import MAX_IR_VERSION
from mxspec.runtime.models.graph import session_options

STANDARD_OPSET = 23
CAPACITY = 256  # tokens of the caches
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}


@dataclass(frozen=True)
class Node:
    """One operator, its inputs by name, and its outputs: arrays to write, or the names of inputs written in place."""

    operator: Operator
    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[NDArray[Any] | str, ...]
    attributes: Mapping[str, float | int] = field(default_factory=dict)

    def chain(self, count: int) -> Any:
        """A binding to run: `count` nodes that read the same inputs, each after the other."""
        session = ort.InferenceSession(self._model(count), session_options(), providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for i in range(count):
            for place, output in enumerate(self.outputs):
                value = values[output] if isinstance(output, str) else ort.OrtValue.ortvalue_from_numpy(output)
                binding.bind_ortvalue_output(f"{place}.{i}", value)
        return lambda: session.run_with_iobinding(binding)

    def _model(self, count: int) -> bytes:
        named = [name.removesuffix("?") for name in self.operator.inputs]
        given = [name if name in self.inputs else "" for name in named]
        places = range(len(self.outputs))
        nodes = [
            helper.make_node(self.operator.name, given, [f"{place}.{i}" for place in places], domain=DOMAIN)
            for i in range(count)
        ]
        for node in nodes:
            node.attribute.extend(helper.make_attribute(*item) for item in self.attributes.items())
        written = [self.inputs[output] if isinstance(output, str) else output for output in self.outputs]
        outputs = [_info(f"{place}.{i}", written[place]) for i in range(count) for place in places]
        graph = helper.make_graph(nodes, "floor", [_info(*item) for item in self.inputs.items()], outputs)
        opsets = [helper.make_opsetid("", STANDARD_OPSET), helper.make_opsetid(DOMAIN, OPSET)]
        model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=MAX_IR_VERSION).SerializeToString()
        return model


def norm(width: int) -> Node:
    """The norm of a residual sum of one row."""
    row = _floats(1, 1, width)
    inputs = {"x": row, "residual": row.copy(), "weight": _floats(width)}
    return Node(ADD_RMS_NORM, inputs, (row.copy(), row.copy()), {"epsilon": 1e-5})


def gate(width: int) -> Node:
    """A gated unit of one row."""
    return Node(SWIGLU, {"x": _floats(1, 1, 2 * width)}, (_floats(1, 1, width),))


def attention(shape: Shape, cached: int) -> Node:
    """Rotation, the write to the cache, and the attention of one row after `cached` tokens."""
    size, heads = shape.head_size, shape.heads
    cache = _floats(1, shape.kv_heads, CAPACITY, size).astype(np.float16)
    inputs: dict[str, NDArray[Any]] = {
        "qkv": _floats(1, 1, (heads + 2 * shape.kv_heads) * size),
        "past_key": cache,
        "past_value": cache.copy(),
        "slots": np.array([0], np.int32),
        "past_lengths": np.array([cached], np.int32),
        "new_lengths": np.array([1], np.int32),
        "cos": _floats(1, 1, size // 2),
        "sin": _floats(1, 1, size // 2),
    }
    outputs = (_floats(1, 1, heads * size), "past_key", "past_value")
    return Node(QKV_ATTENTION, inputs, outputs, {"scale": size**-0.5})


def _floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _info(name: str, array: NDArray[Any]) -> Any:
    return helper.make_tensor_value_info(name, TYPES[array.dtype.name], array.shape)
