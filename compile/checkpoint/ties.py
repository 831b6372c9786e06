"""Does a checkpoint keep the tie that its config.json speaks of? Where both tables are there and differ, it does not.

transformers decides so, too (PreTrainedModel.tie_weights, 5.23): PEFT, for one, writes such checkpoints when it merges
an adapter of the head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.mx_tensor import MxTensor, Source
from mxspec.compile.checkpoint.names import name_parameters, rename, tied_names
from mxspec.compile.checkpoint.tensor import as_float32

PIECE_VALUES = 4 << 20  # compared at once


def broken_tie(config: PreTrainedConfig, tensors: Mapping[str, Source]) -> tuple[Source, Source] | None:
    """Two tensors that are one parameter by the configuration and hold different values, or None."""
    if not getattr(config, "tie_word_embeddings", False) or not _has_two_tables(config, tensors):
        return None
    model = name_parameters(config)
    found, _ = rename(model, list(tensors))
    for names in tied_names(model).values():
        held = [tensors[found[name]] for name in sorted(names) if name in found]
        for other in held[1:]:
            if not same_values(held[0], other):
                return held[0], other
    return None


def _has_two_tables(config: PreTrainedConfig, tensors: Mapping[str, Source]) -> bool:
    """Whether a second look, which takes a model's skeleton, is worth its time."""
    rows = getattr(config, "vocab_size", None)
    return sum(tensor.shape[:1] == (rows,) and len(tensor.shape) == 2 for tensor in tensors.values()) > 1


def same_values(one: Source, other: Source) -> bool:
    """Whether two tensors are equal, number for number, whatever types they have; read in pieces."""
    if isinstance(one, MxTensor) != isinstance(other, MxTensor):
        return True  # as far as can be said here: choosing formats refuses such a pair
    if one.shape != other.shape:
        return False
    step = max(1, PIECE_VALUES // max(1, math.prod(one.shape[1:])))
    for begin in range(0, one.shape[0], step):
        end = min(begin + step, one.shape[0])
        left, right = (as_float32(tensor.read_rows(begin, end), tensor.dtype) for tensor in (one, other))
        if not np.array_equal(left, right):
            return False
    return True
