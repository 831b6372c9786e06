"""The kinds of key-value caches: what an entry of a head holds."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from mxspec.formats.weight_format import BLOCK

CacheKind = Literal["float32", "float16", "mxint8"]
CACHE_KINDS: tuple[CacheKind, ...] = get_args(CacheKind)
"""In the order of CacheKind in runtime/ops/kernels/attention.h."""

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


def cache_bytes(kind: CacheKind, layers: int, kv_heads: int, head_size: int, tokens: int) -> int:
    """Bytes of the keys and values of so many tokens, in all layers."""
    return 2 * layers * kv_heads * entry_bytes(kind, head_size) * tokens
