"""What a pass is: one change of the graph in place, checked before and after by onnx_ir, and counted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import onnx_ir as ir


@dataclass
class Counted(ir.passes.PassResult):
    """What a pass gives back: the model, whether it was changed, and in how many places."""

    count: int


class GraphPass(ir.passes.InPlacePass):
    """One change of the graph. What it needs and what it leaves stand in `requires` and `ensures`, asserted each run.

    Nodes that lose their last reader stay until the one pass that sweeps them (sweep.py).
    """

    @abstractmethod
    def change(self, model: ir.Model) -> int:
        """Do it; returns the number of places."""

    def run(self, model: ir.Model) -> int:
        """All of it: check, do, check; returns the number of places."""
        result = self(model)
        assert isinstance(result, Counted)
        return result.count

    @final
    def call(self, model: ir.Model) -> Counted:
        """`change`, as onnx_ir calls it."""
        count = self.change(model)
        return Counted(model, count > 0, count)
