"""The kinds of key-value caches: what an entry of a head holds, and how many entries a layer keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np

from mxspec.formats.weight_format import BLOCK

CacheKind = Literal["float32", "float16", "mxint8"]
CACHE_KINDS: tuple[CacheKind, ...] = get_args(CacheKind)
"""In the order of CacheKind in runtime/ops/kernels/attention/attention.h."""

SPAN = 128
"""Entries that attention reads together: kSpanKeys in runtime/ops/kernels/attention/attention.h."""

_DTYPES: dict[CacheKind, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "mxint8": np.uint8}


def cache_dtype(kind: CacheKind) -> np.dtype[Any]:
    """The type of a cache's array: that of the values, or bytes for MXINT8."""
    return np.dtype(_DTYPES[kind])


def entry_size(kind: CacheKind, head_size: int) -> int:
    """Size of the last dimension of a cache's array.

    For MXINT8, `head_size` INT8 elements, then a scale in E8M0 for each 32 of them (OCP MX 1.0, section 6.3);
    `head_size` is a multiple of 32.
    """
    return head_size if kind != "mxint8" else head_size + head_size // BLOCK


def entry_bytes(kind: CacheKind, head_size: int) -> int:
    """Bytes of a head's key, or value, for one token."""
    return entry_size(kind, head_size) * cache_dtype(kind).itemsize


def cache_bytes(kind: CacheKind, kv_heads: int, head_size: int, tokens: int) -> int:
    """Bytes of the keys and values of so many tokens, counted once for each layer that keeps them."""
    return 2 * kv_heads * entry_bytes(kind, head_size) * tokens


def capacity_of(window: int, context: int, call: int) -> int:
    """Entries that a layer keeps of a text of up to `context` tokens, to which a call adds up to `call`.

    A layer with a window (0: none) keeps what its rows see, and what a call writes, in a ring of whole spans.
    """
    return min(context, -(-(window + call) // SPAN) * SPAN) if window else context


def kept_tokens(windows: Iterable[int], tokens: int, context: int, call: int) -> int:
    """Tokens of a text of `tokens` that layers with these windows keep, counted once for each layer."""
    return sum(min(tokens, capacity_of(window, context, call)) for window in windows)


def capacity_name(window: int) -> str:
    """The name that a graph gives this dimension of its caches."""
    return f"capacity_of_window_{window}" if window else "capacity"
