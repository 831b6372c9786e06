"""The base of passes: one kind of change of the graph in place, checked before and after, and counted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import onnx_ir as ir


@dataclass
class Counted(ir.passes.PassResult):
    """The result of a pass: the model, whether it was changed, and the number of changes."""

    count: int


class GraphPass(ir.passes.InPlacePass):
    """One kind of change. Its preconditions are in `requires`, its postconditions in `ensures`; each run asserts both.

    Unused nodes stay until the pass that removes them (tidying.py).
    """

    @abstractmethod
    def change(self, model: ir.Model) -> int:
        """Change the graph; return the number of changes."""

    def run(self, model: ir.Model) -> int:
        """Check, change, and check again; return the number of changes."""
        result = self(model)
        assert isinstance(result, Counted)
        return result.count

    @final
    def call(self, model: ir.Model) -> Counted:
        """Run `change`; onnx_ir calls this method."""
        count = self.change(model)
        return Counted(model, count > 0, count)
