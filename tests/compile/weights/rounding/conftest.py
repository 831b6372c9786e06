"""Tiny checkpoints opened for rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint, CheckpointTensor
from mxspec.compile.checkpoint.names import name_parameters, resolve_names
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.text import CalibrationText


@dataclass(frozen=True)
class Opened:
    """A checkpoint's tensors by parameter name, and the whole model as an oracle."""

    sources: dict[str, CheckpointTensor]
    oracle: PreTrainedModel
    config: PreTrainedConfig

    def layered(self) -> LayeredModel:
        return LayeredModel(self.config, self.sources)


@pytest.fixture
def open_tiny(tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]]) -> Iterator[Callable[[str], Opened]]:
    """Call it with a name of TINY."""
    with ExitStack() as files:

        def open_(name: str) -> Opened:
            folder, oracle = tiny_checkpoint(name)
            checkpoint = files.enter_context(Checkpoint(folder))
            model = name_parameters(checkpoint.config)
            found = resolve_names(model, checkpoint.tensors, [parameter for parameter, _ in model.named_parameters()])
            sources = {parameter: checkpoint.tensors[tensor] for parameter, tensor in found.tensor_of.items()}
            return Opened(sources, oracle, checkpoint.config)

        yield open_


@pytest.fixture
def text() -> CalibrationText:
    """Six windows of twenty random ids."""
    return CalibrationText(np.random.default_rng(0).integers(3, 120, (6, 20)), "0" * 64)
