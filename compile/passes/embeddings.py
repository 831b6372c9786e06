"""Tables that are only looked up are stored as float16."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from mxspec.compile.graph import WeightSpec
from mxspec.compile.passes.graph_pass import GraphPass


class HalveEmbeddings(GraphPass):
    """Make such tables float16, in graph and specs; the rows found are cast, not the table.

    Requires a swept graph: a dead reader would count as one that wants the whole table.
    """

    def __init__(self, specs: dict[str, WeightSpec]) -> None:
        self._specs = specs

    def change(self, model: ir.Model) -> int:
        tables = [name for name, spec in self._specs.items() if spec.kind == "float32" and len(spec.shape) == 2]
        return sum(self._halve(model, name) for name in tables)

    def _halve(self, model: ir.Model, name: str) -> bool:
        table = model.graph.initializers.get(name)
        lookups = [use.node for use in table.uses()] if table is not None else []
        if not lookups or not all(node.op_type == "Gather" and node.inputs[0] is table for node in lookups):
            return False
        assert table is not None
        table.type = ir.TensorType(ir.DataType.FLOAT16)
        self._specs[name] = replace(self._specs[name], kind="embedding", format="fp16")
        for node in lookups:
            _cast_result(model, node)
        return True

    def ensures(self, model: ir.Model) -> None:
        for name, value in model.graph.initializers.items():
            assert name not in self._specs or value.dtype == ir.DataType.from_numpy(self._specs[name].stored_dtype)


def _cast_result(model: ir.Model, node: ir.Node) -> None:
    found = node.outputs[0]
    cast = ir.Node("", "Cast", [found], [ir.AttrInt64("to", ir.DataType.FLOAT)], name=f"{node.name}_float")
    cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = f"{found.name}_float", found.shape, found.type
    found.type = ir.TensorType(ir.DataType.FLOAT16)
    for use in list(found.uses()):
        if use.node is not cast:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    model.graph.insert_after(node, cast)
