"""Remove the trace's fake values from initializers; give small constants their real values."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.passes.graph_pass import GraphPass

INLINE_ENTRIES = 64  # constants up to this size stay inside the graph file


class TakeValuesOut(GraphPass):
    """Runs first, because no pass may read a fake value. Requires a spec for every initializer."""

    def __init__(self, specs: Mapping[str, WeightSpec]) -> None:
        self._specs = specs

    def requires(self, model: ir.Model) -> None:
        unknown = model.graph.initializers.keys() - self._specs.keys()
        assert not unknown, f"initializers that are no parameters or buffers: {sorted(unknown)}"

    def change(self, model: ir.Model) -> int:
        for name, value in model.graph.initializers.items():
            real = self._specs[name].value
            inline = real is not None and real.size <= INLINE_ENTRIES
            value.const_value = ir.tensor(real, name=name) if inline and real is not None else None
        return len(model.graph.initializers)

    def ensures(self, model: ir.Model) -> None:
        values = (value.const_value for value in model.graph.initializers.values())
        assert all(value is None or value.size <= INLINE_ENTRIES for value in values)
