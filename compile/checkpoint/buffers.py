"""Small buffers that checkpoints store besides their parameters, such as the constants of xIELU (Apertus).

Small means at most one row, such as the biases of logits in BART and Marian. A model computes these buffers when it is
built, then transformers loads the checkpoint's values. Tables of positions are left out: every model computes the same.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.names import rename
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, Tensors, as_float32
from mxspec.formats.errors import CheckpointError


def stored_buffers(model: PreTrainedModel) -> dict[str, Tensor]:
    """The small buffers of a model, by name."""
    state = model.state_dict().keys()
    named = model.named_buffers()
    return {name: value for name, value in named if name in state and _is_row(value) and value.is_floating_point()}


def _is_row(value: Tensor) -> bool:
    return value.ndim <= 1 or (value.ndim == 2 and value.shape[0] == 1)


def find_buffers(model: PreTrainedModel, tensors: Tensors) -> Tensors:
    """The checkpoint's tensors for a model's small buffers; a buffer without one is left out."""
    wanted = stored_buffers(model)
    found, _ = rename(model, list(tensors)) if wanted else ({}, {})
    return {name: tensors[found[name]] for name in wanted if name in found}


def load_buffers(model: PreTrainedModel, sources: Tensors) -> None:
    """Load the buffers in `sources`. Raises CheckpointError for a wrong shape or a value that is not finite."""
    for name, buffer in stored_buffers(model).items():
        if (source := sources.get(name)) is None:
            continue
        where = f"tensor {source.name!r} of {source.shard}"
        if not isinstance(source, CheckpointTensor) or source.shape != tuple(buffer.shape):
            raise CheckpointError(f"{where} has shape {list(source.shape)}, expected {list(buffer.shape)} for {name}")
        values = np.asarray(as_float32(source.read(), source.dtype))  # numpy makes scalars of arrays of one number
        if not np.isfinite(values).all():
            raise CheckpointError(f"{where} holds NaN or infinity; the checkpoint is damaged")
        buffer.copy_(torch.from_numpy(values))
