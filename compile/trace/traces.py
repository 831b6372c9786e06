"""One trace for a model in several formats: in its raw graph only the packed products depend on them."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.trace.interface import GraphInterface
from mxspec.compile.trace.modules import PackedLinear


class Traces:
    """The raw graphs of one checkpoint at one context length; tracing takes most of the time of an export."""

    def __init__(self) -> None:
        self._kept: dict[type[GraphInterface], ir.Model] = {}

    def of(self, interface: GraphInterface, trace: Callable[[GraphInterface], ir.Model]) -> ir.Model:
        """A raw graph of its own for each call, in the formats of the interface's model."""
        kind = type(interface)
        if kind not in self._kept:
            self._kept[kind] = trace(interface)
        graph = self._kept[kind].clone()
        _set_formats(graph, interface)
        return graph


def _set_formats(graph: ir.Model, interface: GraphInterface) -> None:
    products = {
        f"{path}.weight": module for path, module in interface.model.named_modules() if isinstance(module, PackedLinear)
    }
    for node in graph.graph:
        if node.op_type == PACKED_MATMUL.name:
            weight = node.inputs[1]
            assert weight is not None
            product = products[str(weight.name)]
            weight.shape = ir.Shape(product.weight.shape)
            attributes = ir.convenience.convert_attributes(product.source.attributes)
            node.attributes.clear()
            node.attributes.update({attribute.name: attribute for attribute in attributes})
