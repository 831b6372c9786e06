"""Marian counts its tokens itself; its sinusoids are a parameter that is always computed, never loaded."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.positions import ComputedPositions


def patch(model: PreTrainedModel, call: CallInputs) -> None:
    """Take positions from the call, and join all tables."""
    paths = [path for path, _ in model.named_modules() if path.endswith("embed_positions")]
    first: Any = model.get_submodule(paths[0])
    positions = ComputedPositions(first.create_weight(), call.positions)
    for path in paths:
        model.set_submodule(path, positions)
