"""Fuse projections of the same activations into one product, with stacked weights: q, k and v, or gate and up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.passes.graph_pass import GraphPass
from mxspec.compile.passes.nodes import make_node, nodes_of
from mxspec.formats.weight_format import TILE_ROWS

_WEIGHT = PACKED_MATMUL.slot("B")


class FuseProjections(GraphPass):
    """Fuse every group of PackedMatMul nodes that read one value, and add the specs of the stacked weights.

    They must belong to one module: if attention and MLP read the same norm (Phi), each has its own product, which the
    next operator then reads whole. Only whole row tiles can be stacked, so each matrix except a group's last must have
    a multiple of 16 rows. Results keep their bits, because an output's sum never depends on other rows.
    """

    def __init__(self, specs: dict[str, WeightSpec]) -> None:
        self._specs = specs

    def requires(self, model: ir.Model) -> None:
        assert all(_name(node, _WEIGHT) in self._specs for node in nodes_of(PACKED_MATMUL, model))

    def change(self, model: ir.Model) -> int:
        groups = _groups(model, self._specs)
        for nodes in groups:
            _fuse(model, nodes, self._specs)
        return len(groups)

    def ensures(self, model: ir.Model) -> None:
        self.requires(model)
        assert not _groups(model, self._specs)


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
    split = ir.Node(
        "",
        "Split",
        [product.outputs[0], graph.initializers[name]],
        [ir.AttrInt64("axis", -1)],
        num_outputs=len(nodes),
        name=f"{first.name}_split",
    )
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
