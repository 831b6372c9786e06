"""One trace for a model in several formats: in its raw graph only packed products and the types of caches differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from torch import Tensor

from mxspec.compile.graph.cache_types import set_caches
from mxspec.compile.trace.interface import GraphInterface
from mxspec.compile.trace.packed import PackedModule


class Traces:
    """The raw graphs of one checkpoint at one context length; tracing takes most of the time of an export."""

    def __init__(self) -> None:
        self._kept: dict[type[GraphInterface], ir.Model] = {}

    def of(self, interface: GraphInterface, trace: Callable[[GraphInterface], ir.Model]) -> ir.Model:
        """A raw graph of its own for each call, in the formats of the interface's model and with its caches."""
        kind = type(interface)
        if kind not in self._kept:
            self._kept[kind] = trace(interface)
        graph = self._kept[kind].clone()
        _set_formats(graph, interface)
        set_caches(graph, interface.caches.kind, interface.caches.head_size)
        return graph


def _set_formats(graph: ir.Model, interface: GraphInterface) -> None:
    """Give products and experts the formats of the interface's modules."""
    weights: dict[str, Tensor] = {}
    attributes: dict[str, dict[str, Any]] = {}  # by the name of a node's first packed weight
    for path, module in interface.model.named_modules():
        for name in module.sources if isinstance(module, PackedModule) else ():
            weights[f"{path}.{name}"] = getattr(module, name)
            attributes[f"{path}.{name}"] = module.attributes
    for node in graph.graph:
        packed = [value for value in node.inputs if value is not None and value.name in weights]
        if not packed:
            continue
        for value in packed:
            value.shape = ir.Shape(weights[str(value.name)].shape)
        given = ir.convenience.convert_attributes(attributes[str(packed[0].name)])
        node.attributes.clear()
        node.attributes.update({attribute.name: attribute for attribute in given})
