"""Products of the same activations, gated linear units, and norms of residual sums: each as one operator."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import ADD_LAYER_NORM, ADD_RMS_NORM, GEGLU, PACKED_MATMUL, SWIGLU, Operator
from mxspec.compile.passes.nodes import Segment, make_node, nodes_of, put_in_place, segment_of
from mxspec.formats.weight_format import TILE_ROWS

_WEIGHT = PACKED_MATMUL.slot("B")
_FUSED = {"RMSNormalization": ADD_RMS_NORM, "LayerNormalization": ADD_LAYER_NORM}


def fuse_projections(model: ir.Model, specs: dict[str, WeightSpec]) -> None:
    """Fuse every group of PackedMatMul nodes that read one value, and add the specs of the stacked weights.

    They must belong to one module: if attention and MLP read the same norm (Phi), each has its own product, which the
    next operator then reads whole. Only whole row tiles can be stacked, so each matrix except a group's last must have
    a multiple of 16 rows. Results keep their bits, because an output's sum never depends on other rows.
    """
    for nodes in _groups(model, specs):
        _fuse(model, nodes, specs)


def _groups(model: ir.Model, specs: dict[str, WeightSpec]) -> list[list[ir.Node]]:
    found: dict[tuple[object, ...], list[ir.Node]] = defaultdict(list)
    for node in nodes_of(PACKED_MATMUL, model):
        spec = specs[_name(node, _WEIGHT)]
        module = spec.name.rsplit(".", 2)[0]
        key = (id(node.inputs[0]), module, spec.format, spec.shape[1], spec.transpose, len(node.inputs))
        found[key].append(node)
    groups = []
    for nodes in found.values():
        group: list[ir.Node] = []
        for node in nodes:
            group.append(node)
            if specs[_name(node, _WEIGHT)].shape[0] % TILE_ROWS:  # nothing can be stacked after a partial row tile
                groups.append(group)
                group = []
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def _fuse(model: ir.Model, nodes: list[ir.Node], specs: dict[str, WeightSpec]) -> None:
    graph, first = model.graph, nodes[0]
    sizes = [specs[_name(node, _WEIGHT)].shape[0] for node in nodes]
    operands = [_stack(graph, [_name(node, i) for node in nodes], specs) for i in range(1, len(first.inputs))]
    attributes = [ir.AttrInt64("N", sum(sizes)), *(a for a in first.attributes.values() if a.name != "N")]
    product = make_node(PACKED_MATMUL, [first.inputs[0], *operands], attributes, name=f"{first.name}_fused")
    result = first.outputs[0]
    product.outputs[0].name, product.outputs[0].type = f"{result.name}_fused", result.type
    if result.shape is not None:
        product.outputs[0].shape = ir.Shape([*result.shape[:-1], sum(sizes)])
    name = "split_" + "_".join(map(str, sizes))
    if name not in graph.initializers:
        graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(np.array(sizes, np.int64), name=name)))
    inputs, axis = [product.outputs[0], graph.initializers[name]], [ir.AttrInt64("axis", -1)]
    split = ir.Node("", "Split", inputs, axis, num_outputs=len(nodes), name=f"{first.name}_split")
    graph.insert_before(first, [product, split])
    for node, part in zip(nodes, split.outputs, strict=True):
        old = node.outputs[0]
        part.name, part.shape, part.type = old.name, old.shape, old.type
        old.replace_all_uses_with(part)
        graph.remove(node, safe=True)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]


def _stack(graph: ir.Graph, names: list[str], specs: dict[str, WeightSpec]) -> ir.Value:
    """Register the initializer that stacks these, and its spec."""
    parts = [specs[name] for name in names]
    parents, leaves = zip(*(name.rsplit(".", 2)[:2] for name in names), strict=True)
    kind = names[0].rsplit(".", 1)[1]
    name = f"{parents[0]}.{'+'.join(leaves)}.{kind}"
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    stacked = replace(parts[0], name=name, shape=shape, sources=tuple(s for part in parts for s in part.sources))
    specs[name] = stacked
    value = ir.Value(name=name, shape=ir.Shape(stacked.stored_shape), type=graph.initializers[names[0]].type)
    graph.initializers.add(value)
    return value


def _name(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    assert value is not None
    assert value.name is not None
    return value.name


def fuse_gates(model: ir.Model) -> None:
    """Replace activation(gate) * up by SwiGLU or GeGLU if gate and up are the halves of one value.

    Requires fused projections, which produce that value.
    """
    for node in [node for node in model.graph if node.op_type == "Mul"]:
        if fused := _gated_unit(*node.inputs) or _gated_unit(*node.inputs[::-1]):
            operator, source = fused
            put_in_place(model, node, make_node(operator, [source], name=f"{node.name}_gated"), node.outputs)


def _gated_unit(activated: ir.Value | None, up: ir.Value | None) -> tuple[Operator, ir.Value] | None:
    """The operator and its input, if these are a gated unit's two factors."""
    activation = _activation(activated)
    segment = segment_of(up)
    if activation is None or segment is None:
        return None
    operator, gate = activation
    size = segment.size
    if gate != Segment(segment.source, 0, size) or segment.start != size or segment.width != 2 * size:
        return None
    return operator, segment.source


def _activation(value: ir.Value | None) -> tuple[Operator, Segment | None] | None:
    """The operator for the activation that produced this value, and the activation's input."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") == "tanh":
        return GEGLU, segment_of(node.inputs[0])
    if node.op_type == "Mul":  # SiLU: x * sigmoid(x)
        for x, factor in (node.inputs, node.inputs[::-1]):
            sigmoid = None if factor is None else factor.producer()
            if sigmoid is not None and sigmoid.op_type == "Sigmoid" and sigmoid.inputs[0] is x:
                return SWIGLU, segment_of(x)
    return None


def fuse_residuals(model: ir.Model) -> None:
    """Replace a norm of a sum of two equal shapes; the sum stays for its other readers, also for a second norm.

    The norm must be along the last axis and have one output, and a LayerNormalization must have a bias. Ensures that
    the graph is sorted.
    """
    for node in [node for node in model.graph if node.op_type in _FUSED]:
        addition = node.inputs[0].producer() if node.inputs[0] is not None else None
        if addition is None or addition.op_type != "Add" or not _fits(node, addition):
            continue
        epsilon = ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))
        inputs, name = [*addition.inputs, *node.inputs[1:]], f"{node.name}_residual"
        fused = make_node(_FUSED[node.op_type], inputs, [epsilon], name=name)
        put_in_place(model, node, fused, (node.outputs[0], addition.outputs[0]))
        model.graph.remove(node, safe=True)
        model.graph.remove(addition, safe=True)
    model.graph.sort()  # a sum's other readers may come before the norm


def _fits(node: ir.Node, addition: ir.Node) -> bool:
    shapes = [None if value is None else value.shape for value in (*addition.inputs, addition.outputs[0])]
    plain = len(node.inputs) == len(_FUSED[node.op_type].inputs) - 1 and len(node.outputs) == 1
    last = node.attributes.get_int("axis", -1) in (-1, len(shapes[-1] or ()) - 1)
    return plain and last and shapes[0] is not None and shapes[0] == shapes[1] == shapes[2]
