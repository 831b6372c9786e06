"""The passes that turn the raw graph into the one that is shipped; each changes the graph in place."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnxscript.optimizer import optimize_ir
from onnxscript.rewriter.rules.fusion._rms_normalization import fuse_rms_normalization

from mxspec.compile.passes.transposes import cancel_transposes
from mxspec.formats.errors import UnsupportedModelError

DOMAIN = "mxspec"
INLINE_ENTRIES = 64  # constants up to this size stay inside the graph file
MAX_IR_VERSION = 13  # of ONNX Runtime 1.31

# They give a row other bits in other company, or hide a weight from the packer: no shipped graph may hold one.
_FORBIDDEN = {"ReduceMean", "ReduceSum", "Cos", "Sin", "MatMul", "Gemm", "Einsum", "Softmax", "CumSum", "Conv"}


def take_values_out(model: ir.Model, constants: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Before anything reads a value: initializers lose their fake ones, small constants get their real ones."""
    for name, value in model.graph.initializers.items():
        real = constants.get(name)
        inline = real is not None and real.size <= INLINE_ENTRIES
        value.const_value = ir.tensor(real, name=name) if inline and real is not None else None


def make_reshapes_constant(model: ir.Model) -> None:
    """A shape that only copies or splits dimensions of the input needs no nodes to compute it."""
    for node in _nodes(model, "Reshape"):
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None or result.shape is None:
            continue
        if list(source.shape) == list(result.shape) and not result.is_graph_output():
            result.replace_all_uses_with(source)
            continue
        target = _reshape_target(list(source.shape), list(result.shape))
        if target is None:
            continue
        shape = ir.Node("", "Constant", [], [ir.AttrInt64s("value_ints", target)], name=f"{node.name}_shape")
        model.graph.insert_before(node, shape)
        node.replace_input_with(1, shape.outputs[0])
        node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)


@contextmanager
def _quiet() -> Iterator[None]:
    """onnx_ir warns about every initializer without a value, which here are all."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reshape_target(source: list[object], result: list[object]) -> list[int] | None:
    """0 copies a dimension, one -1 is worked out by the runtime; None where that does not say it."""
    target: list[int] = []
    for index, dimension in enumerate(result):
        if isinstance(dimension, int):
            target.append(dimension)
        elif index < len(source) and source[index] == dimension:
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 and 0 not in [d for d in result if isinstance(d, int)] else None


def simplify(model: ir.Model) -> None:
    """Fold what is constant, cancel transposes, drop what nothing reads, fuse the RMS norms."""
    with _quiet():
        optimize_ir(model, onnx_shape_inference=False)
        fuse_rms_normalization(model)
        cancel_transposes(model)


def store_embeddings_as_half(model: ir.Model, parameters: Iterable[str]) -> list[str]:
    """Parameters that are only looked up become float16; the rows found are cast, not the table. Returns the names."""
    tables = []
    for name in parameters:
        table = model.graph.initializers.get(name)
        lookups = [use.node for use in table.uses()] if table is not None else []
        if not lookups or not all(node.op_type == "Gather" and node.inputs[0] is table for node in lookups):
            continue
        assert table is not None
        table.type = ir.TensorType(ir.DataType.FLOAT16)
        tables.append(name)
        for node in lookups:
            _cast_behind(model, node)
    return tables


def _cast_behind(model: ir.Model, node: ir.Node) -> None:
    found = node.outputs[0]
    cast = ir.Node("", "Cast", [found], [ir.AttrInt64("to", ir.DataType.FLOAT)], name=f"{node.name}_float")
    cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = f"{found.name}_float", found.shape, found.type
    found.type = ir.TensorType(ir.DataType.FLOAT16)
    for use in list(found.uses()):
        if use.node is not cast:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    model.graph.insert_after(node, cast)


def finish(model: ir.Model) -> None:
    """Opset imports, IR version and metadata as the contract wants them, without torch's notes about its own source."""
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    model.graph.opset_imports[DOMAIN] = 1
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def check(model: ir.Model, architecture: str, inputs: list[str], outputs: list[str]) -> None:
    """What every shipped graph must be; raises UnsupportedModelError for the model that does not come out so."""
    counts = Counter(node.op_type for node in model.graph)
    if bad := sorted(_FORBIDDEN & counts.keys()):
        found = ", ".join(f"{counts[name]} {name}" for name in bad)
        raise UnsupportedModelError(
            f"{architecture}: its graph holds {found}, which no pass could replace: "
            "results would depend on the batch, or weights would stay unpacked"
        )
    for what, got, wanted in (
        ("inputs", [value.name for value in model.graph.inputs], inputs),
        ("outputs", [value.name for value in model.graph.outputs], outputs),
    ):
        assert got == wanted, f"{architecture}: graph {what} are {got}, expected {wanted}"
    unused = [value.name for value in model.graph.inputs if not value.uses() and value.name != "position_ids"]
    if unused:
        raise UnsupportedModelError(f"{architecture}: its graph never reads {', '.join(map(str, unused))}")


def _nodes(model: ir.Model, op_type: str) -> Iterator[ir.Node]:
    yield from [node for node in model.graph if node.op_type == op_type]
