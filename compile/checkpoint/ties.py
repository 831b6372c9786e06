"""Find broken ties: config.json ties two tables, but the checkpoint has both, and they differ.

An encoder-decoder ties more than two tables (T5 both embeddings and the head), but T5 1.1 has a separate head, so each
parameter is checked by itself. transformers decides in the same way (PreTrainedModel.tie_weights, 5.23). PEFT writes
such checkpoints when it merges an adapter of the head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.names import name_parameters, rename, tied_names
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import Tensor, Tensors, as_float32

PIECE_VALUES = 4 << 20  # values compared at a time


@dataclass(frozen=True, slots=True)
class BrokenTie:
    """A parameter whose tensor differs from that of the parameter it is tied to."""

    parameter: str
    tensor: Tensor
    tied_to: Tensor


def broken_ties(config: PreTrainedConfig, tensors: Tensors) -> list[BrokenTie]:
    """The parameters that the configuration ties to others, but whose values differ."""
    if not getattr(config, "tie_word_embeddings", False) or not _has_two_tables(config, tensors):
        return []
    model = name_parameters(config)
    found, _ = rename(model, list(tensors))
    groups = {frozenset(names) for names in tied_names(model).values() if len(names) > 1}
    return [tie for names in groups for tie in _broken(_in_order(model, names & found.keys()), found, tensors)]


def _in_order(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """The names, with those that others are tied to first."""
    ties = model.get_expanded_tied_weights_keys(all_submodels=True)
    return sorted(names, key=lambda name: (name in ties, name))


def _broken(names: Sequence[str], found: Mapping[str, str], tensors: Tensors) -> Iterator[BrokenTie]:
    held = {name: tensors[found[name]] for name in names}
    for name in names[1:]:
        if not same_values(held[names[0]], held[name]):
            yield BrokenTie(name, held[name], held[names[0]])


def _has_two_tables(config: PreTrainedConfig, tensors: Tensors) -> bool:
    """Whether the full check, which builds a model without weights, is worth its time."""
    rows = getattr(config, "vocab_size", None)
    return sum(tensor.shape[:1] == (rows,) and len(tensor.shape) == 2 for tensor in tensors.values()) > 1


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have equal values, in whatever types; they are read in pieces."""
    if isinstance(one, MxTensor) != isinstance(other, MxTensor):
        return True  # not decided here: choosing formats refuses such a pair
    if one.shape != other.shape:
        return False
    step = max(1, PIECE_VALUES // max(1, math.prod(one.shape[1:])))
    for begin in range(0, one.shape[0], step):
        end = min(begin + step, one.shape[0])
        left, right = (as_float32(tensor.read_rows(begin, end), tensor.dtype) for tensor in (one, other))
        if not np.array_equal(left, right):
            return False
    return True
