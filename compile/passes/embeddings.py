"""Tables whose rows are looked up: in the head's tiles if it is the same parameter, else in a float16 table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import PACKED_GATHER
from mxspec.compile.passes.nodes import make_node, put_behind, put_in_place

StoredOnce = Callable[[str], bool]  # whether the embedding of a matrix's parameter is looked up in its tiles


def never(parameter: str) -> bool:
    """Store every embedding as a separate table."""
    return False


def share_tied_tables(
    model: ir.Model, specs: dict[str, WeightSpec], stored_once: StoredOnce, beside: Sequence[WeightSpec]
) -> None:
    """Look rows up in the tiles of a matrix of the same parameter, if `stored_once` says so, and remove the table.

    The matrix may also be one of `beside`, which belong to another graph over the same weights. Requires a swept graph:
    an unused reader would count as a reader of the whole table.
    """
    held = [specs[name] for name in model.graph.initializers if name in specs]
    matrices = {spec.sources: spec for spec in beside if spec.looked_up}
    for spec in held:
        if spec.kind == "matmul" and len(spec.sources) == 1 and not spec.transpose and stored_once(spec.sources[0]):
            matrices[spec.sources] = spec
    for table in held:
        matrix = matrices.get(table.sources) if table.kind == "float32" else None
        if matrix is not None and (nodes := _lookups(model, table.name)):
            _look_up(model, nodes, matrix)
            del model.graph.initializers[table.name]
            specs[matrix.name] = replace(matrix, looked_up=True)


def _look_up(model: ir.Model, nodes: list[ir.Node], matrix: WeightSpec) -> None:
    """Replace lookups in a table by lookups in the tiles of a matrix."""
    if matrix.name not in model.graph.initializers:
        shape, dtype = ir.Shape(matrix.stored_shape), ir.TensorType(ir.DataType.UINT8)
        model.graph.initializers.add(ir.Value(name=matrix.name, shape=shape, type=dtype))
    for node in nodes:
        inputs = [node.inputs[1], model.graph.initializers[matrix.name]]
        packed = make_node(PACKED_GATHER, inputs, _attributes(matrix), name=f"{node.name}_packed")
        put_in_place(model, node, packed, node.outputs)
        model.graph.remove(node, safe=True)


def halve_embeddings(model: ir.Model, specs: dict[str, WeightSpec]) -> None:
    """Make tables that are only looked up float16, in graph and specs; the rows are cast, not the table.

    Requires a swept graph, as share_tied_tables.
    """
    for name, spec in specs.items():
        nodes = _lookups(model, name) if spec.kind == "float32" and len(spec.shape) == 2 else []
        if nodes:
            model.graph.initializers[name].type = ir.TensorType(ir.DataType.FLOAT16)
            specs[name] = replace(spec, kind="embedding", format="fp16")
        for node in nodes:
            _cast_result(node)


def _lookups(model: ir.Model, name: str) -> list[ir.Node]:
    """The nodes that look up rows of a table; empty if other nodes read the table too."""
    table = model.graph.initializers.get(name)
    nodes = [use.node for use in table.uses()] if table is not None else []
    found = all(node.op_type == "Gather" and node.inputs[0] is table and not is_rearranged(node) for node in nodes)
    return nodes if found else []


def is_rearranged(node: ir.Node) -> bool:
    """Whether this node reads the same rows of a table in every call: the table in another order, not a lookup."""
    rows = node.inputs[1] if node.op_type == "Gather" else None
    if rows is None:
        return False
    producer = rows.producer()
    return rows.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _attributes(matrix: WeightSpec) -> list[ir.Attr]:
    n, k = matrix.shape
    return [ir.AttrInt64("K", k), ir.AttrInt64("N", n), ir.AttrString("format", matrix.format)]


def _cast_result(node: ir.Node) -> None:
    found = node.outputs[0]
    cast = ir.Node("", "Cast", [found], [ir.AttrInt64("to", ir.DataType.FLOAT)], name=f"{node.name}_float")
    cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = f"{found.name}_float", found.shape, found.type
    found.type = ir.TensorType(ir.DataType.FLOAT16)
    put_behind(node, found, cast)
