"""BART counts its tokens itself, and looks up their positions."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.positions import LearnedPositions


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Take positions from the call."""
    for path, module in list(model.named_modules()):
        if path.endswith("embed_positions"):
            table: Any = module
            model.set_submodule(path, LearnedPositions(table.weight, table.offset, call.positions))
