"""The bytes of matrices that a call of a model reads, which bound its speed."""

from __future__ import annotations

import re
from collections.abc import Callable

from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.weight_format import WEIGHT_FORMATS

# Only the encoder's graph reads these: its own matrices, and those that make the decoder's keys and values of a source.
_OF_ENCODER = re.compile(r"(^|\.)encoder\.|\.(EncDecAttention|encoder_attn)\.[kv]")


def matrix_bytes(entry: ModelEntry) -> int:
    """Bytes of all matrices, without an encoder's."""
    return sum(tensor.bytes for tensor in _matrices(entry))


def read_bytes(entry: ModelEntry, tokens: int = 1) -> int:
    """Bytes of the matrices that a call of `tokens` tokens reads: each once, but of experts only chosen ones.

    As many experts are chosen as is expected of tokens that choose at random.
    """
    growth = known_growth(entry)
    return matrix_bytes(entry) if growth is None else growth(tokens)


def expert_bytes(entry: ModelEntry) -> int:
    """Bytes of all experts of a mixture; 0 for other models."""
    names = set() if entry.experts is None else set(entry.experts.tensors)
    return sum(tensor.bytes for tensor in entry.tensors if tensor.name in names)


def _matrices(entry: ModelEntry) -> list[TensorEntry]:
    packed = [tensor for tensor in entry.tensors if tensor.format in WEIGHT_FORMATS]
    if entry.encoder is not None:
        packed = [tensor for tensor in packed if not _OF_ENCODER.search(tensor.name)]
    return packed


def known_growth(entry: ModelEntry) -> Callable[[int], int] | None:
    """The bytes that a call reads by its tokens, where they grow with them from the first on: of mixtures."""
    if entry.experts is None:
        return None
    experts, share = expert_bytes(entry), entry.experts.read_share
    beside = matrix_bytes(entry) - experts
    return lambda tokens: beside + round(experts * share(tokens))
