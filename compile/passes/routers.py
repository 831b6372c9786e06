"""What chooses the experts of a mixture: products, sums and choices whose bits depend on one row alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.passes.nodes import last_dimension, make_node, put_in_place
from mxspec.formats.tiles import pack_values
from mxspec.formats.weight_format import FP16_TILES, packed_shape


def pack_routers(model: ir.Model, specs: dict[str, WeightSpec]) -> None:
    """Replace products with a parameter that is no linear layer's, and sums along the last axis, by PackedMatMul.

    ONNX Runtime's own product and sum add in an order that depends on the other rows. A router's weights have float16
    tiles whatever the format of the model: they are small, and they choose. Choices (TopK) are made in the order of
    rank, equal scores by the lower index.
    """
    for node in list(model.graph):
        if node.op_type in ("MatMul", "Gemm"):
            _pack_product(model, node, specs)
        elif node.op_type == "ReduceSum":
            _pack_sum(model, node, specs)
        elif node.op_type == "TopK" and not node.attributes.get_int("sorted", 1):
            node.attributes["sorted"] = ir.AttrInt64("sorted", 1)


def _pack_product(model: ir.Model, node: ir.Node, specs: dict[str, WeightSpec]) -> None:
    found = _operands(node)
    spec = None if found is None else specs.get(str(found.weight.name))
    if found is None or spec is None or spec.kind != "float32" or len(spec.shape) != 2:
        return
    n, k = spec.shape
    packed = replace(spec, kind="matmul", format=FP16_TILES)
    specs[spec.name] = packed
    found.weight.shape, found.weight.dtype = ir.Shape(packed.stored_shape), ir.DataType.UINT8
    attributes = ir.convenience.convert_attributes({"K": k, "N": n, "format": FP16_TILES})
    product = make_node(PACKED_MATMUL, [found.x, found.weight, found.bias], attributes, name=f"{node.name}_packed")
    put_in_place(model, node, product, node.outputs)


def _pack_sum(model: ir.Model, node: ir.Node, specs: dict[str, WeightSpec]) -> None:
    """The sum of the entries of the last axis: a product with ones."""
    x, axes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    size = None if x is None else last_dimension(x)
    axis = None if axes is None else ir.convenience.get_const_tensor(axes)
    if x is None or x.shape is None or axes is None or size is None or axis is None or axis.size != 1:
        return
    if int(axis.numpy().reshape(-1)[0]) not in (-1, len(x.shape) - 1):
        return
    graph = model.graph
    name = f"ones_{size}"
    if name not in graph.initializers:
        tiles = pack_values(np.ones((1, size), np.float32), FP16_TILES).data
        shape, dtype = ir.Shape(packed_shape(FP16_TILES, 1, size)), ir.TensorType(ir.DataType.UINT8)
        specs[name] = WeightSpec(name, "matmul", FP16_TILES, (1, size), value=tiles)
        graph.initializers.add(ir.Value(name=name, shape=shape, type=dtype))
    attributes = ir.convenience.convert_attributes({"K": size, "N": 1, "format": FP16_TILES})
    total = make_node(PACKED_MATMUL, [x, graph.initializers[name]], attributes, name=f"{node.name}_packed")
    if node.attributes.get_int("keepdims", 1):
        put_in_place(model, node, total, node.outputs)
        return
    total.outputs[0].name, total.outputs[0].type = f"{node.name}_kept", x.type
    graph.insert_before(node, total)
    dropped = ir.Node("", "Squeeze", [total.outputs[0], axes], name=f"{node.name}_dropped")
    put_in_place(model, node, dropped, node.outputs)


@dataclass(frozen=True, slots=True)
class _Product:
    """x W^T with a parameter W [n, k], and a bias that is added to it."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def _operands(node: ir.Node) -> _Product | None:
    """The operands of a product with a transposed matrix: Gemm, or MatMul of a Transpose."""
    x, matrix = node.inputs[:2]
    if x is None or matrix is None:
        return None
    if node.op_type == "Gemm":
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        turned = node.attributes.get_int("transB", 0) and not node.attributes.get_int("transA", 0)
        if not turned or factors != [1, 1]:
            return None
        return _Product(x, matrix, node.inputs[2] if len(node.inputs) > 2 else None)
    turn = matrix.producer()
    if turn is None or turn.op_type != "Transpose" or list(turn.attributes.get_ints("perm", [])) != [1, 0]:
        return None
    weight = turn.inputs[0]
    return None if weight is None else _Product(x, weight, None)
