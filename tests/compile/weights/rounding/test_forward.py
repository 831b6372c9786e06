"""A model run layer by layer is the model: every tested architecture, against transformers whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mxspec.compile.trace.skeleton import layers_of
from mxspec.compile.weights.rounding.text import CalibrationText
from mxspec.formats.errors import UnsupportedModelError
from tests.compile.conftest import TINY
from tests.compile.weights.rounding.conftest import Opened


def head_inputs(opened: Opened, ids: Tensor) -> Tensor:
    """What the head of the whole model gets."""
    seen: list[Tensor] = []
    hook = opened.oracle.get_output_embeddings().register_forward_pre_hook(
        lambda module, arguments: seen.append(arguments[0])
    )
    with torch.no_grad():
        opened.oracle(input_ids=ids)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("name", TINY)
def test_layer_by_layer_gives_what_the_whole_model_gives(
    name: str, open_tiny: Callable[[str], Opened], text: CalibrationText
) -> None:
    opened = open_tiny(name)
    model = opened.layered()
    windows = text.windows[:2]
    hidden = list(model.embed(windows))
    seen: set[str] = set()
    for index in range(len(model.layers)):
        with model.loaded(index):
            hidden = [model.run(index, values, lambda matrix, inputs: seen.add(matrix)) for values in hidden]
    found = [model.run(len(model.layers), values) for values in hidden]
    for window, values in zip(windows, found, strict=True):
        expected = head_inputs(opened, torch.from_numpy(window)[None])
        torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)
    linear = {
        matrix
        for index in range(len(model.layers))
        for matrix, module in model.matrices(index).items()
        if isinstance(module, nn.Linear | Conv1D)
    }
    assert seen == linear
    assert all(parameter.is_meta for layer in model.layers for parameter in layer.parameters())


def test_a_model_without_a_list_of_layers_is_refused(open_tiny: Callable[[str], Opened]) -> None:
    opened = open_tiny("llama")
    with pytest.raises(UnsupportedModelError, match="no list of its 2 decoder layers"):
        layers_of(nn.ModuleList([nn.Linear(2, 2)]), opened.oracle.config)
