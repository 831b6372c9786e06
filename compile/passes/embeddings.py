"""Tables whose rows are looked up: in the head's tiles if it is the same parameter, else in a float16 table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import PACKED_GATHER
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.nodes import make_node, put_behind, put_in_place

StoredOnce = Callable[[str], bool]  # whether the embedding of a matrix's parameter is looked up in its tiles


def never(parameter: str) -> bool:
    """Store every embedding as a separate table."""
    return False


class ShareTiedTables(GraphPass):
    """Look rows up in the tiles of a matrix of the same parameter, if `stored_once` says so, and remove the table.

    The matrix may also be one of `beside`, which belong to another graph over the same weights. Requires a swept graph:
    an unused reader would count as a reader of the whole table.
    """

    def __init__(
        self, specs: dict[str, WeightSpec], stored_once: StoredOnce, beside: Sequence[WeightSpec] = ()
    ) -> None:
        self._specs, self._stored_once, self._beside = specs, stored_once, beside

    def change(self, model: ir.Model) -> int:
        held = [self._specs[name] for name in model.graph.initializers if name in self._specs]
        matrices = {spec.sources: spec for spec in self._beside if spec.looked_up}
        matrices |= {spec.sources: spec for spec in held if self._may_be_looked_up(spec)}
        tables = [spec for spec in held if spec.kind == "float32" and spec.sources in matrices]
        return sum(self._share(model, table, matrices[table.sources]) for table in tables)

    def _may_be_looked_up(self, spec: WeightSpec) -> bool:
        alone = spec.kind == "matmul" and len(spec.sources) == 1 and not spec.transpose
        return alone and self._stored_once(spec.sources[0])

    def _share(self, model: ir.Model, table: WeightSpec, matrix: WeightSpec) -> bool:
        nodes = _lookups(model, table.name)
        if nodes and matrix.name not in model.graph.initializers:
            shape, dtype = ir.Shape(matrix.stored_shape), ir.TensorType(ir.DataType.UINT8)
            model.graph.initializers.add(ir.Value(name=matrix.name, shape=shape, type=dtype))
        for node in nodes:
            inputs = [node.inputs[1], model.graph.initializers[matrix.name]]
            packed = make_node(PACKED_GATHER, inputs, _attributes(matrix), name=f"{node.name}_packed")
            put_in_place(model, node, packed, node.outputs)
            model.graph.remove(node, safe=True)
        if nodes:
            del model.graph.initializers[table.name]
            self._specs[matrix.name] = replace(matrix, looked_up=True)
        return bool(nodes)


class HalveEmbeddings(GraphPass):
    """Make tables that are only looked up float16, in graph and specs; the rows are cast, not the table.

    Requires a swept graph, as ShareTiedTables.
    """

    def __init__(self, specs: dict[str, WeightSpec]) -> None:
        self._specs = specs

    def change(self, model: ir.Model) -> int:
        tables = [name for name, spec in self._specs.items() if spec.kind == "float32" and len(spec.shape) == 2]
        return sum(self._halve(model, name) for name in tables)

    def _halve(self, model: ir.Model, name: str) -> bool:
        nodes = _lookups(model, name)
        if nodes:
            model.graph.initializers[name].type = ir.TensorType(ir.DataType.FLOAT16)
            self._specs[name] = replace(self._specs[name], kind="embedding", format="fp16")
        for node in nodes:
            _cast_result(node)
        return bool(nodes)

    def ensures(self, model: ir.Model) -> None:
        for name, value in model.graph.initializers.items():
            assert name not in self._specs or value.dtype == ir.DataType.from_numpy(self._specs[name].stored_dtype)


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
