"""Count which tokens followed which, in the tables that mxspec.runtime.drafters.ngram reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.drafters.ngram import MOST_FOLLOWING, ORDERS


def count_ngrams(tokens: NDArray[np.int32], vocab_size: int) -> dict[str, NDArray[Any]]:
    """Tables of `tokens` int32[n]: the MOST_FOLLOWING most frequent tokens after each two, one and zero tokens."""
    ids = tokens.astype(np.int64)
    arrays: dict[str, NDArray[Any]] = {}
    for order in ORDERS:
        keys = np.zeros(max(len(ids) - order, 0), np.int64)
        for place in range(order):
            keys = keys * vocab_size + ids[place : place + len(keys)]
        contexts, starts, following, counts = _count(keys, ids[order:])
        if order:
            arrays |= {f"contexts.{order}": contexts, f"starts.{order}": starts.astype(np.int32)}
        arrays |= {f"ids.{order}": following.astype(np.int32), f"counts.{order}": counts.astype(np.int32)}
    return arrays


def _count(keys: NDArray[np.int64], following: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Distinct keys, where the entries of each key begin, and for each entry a token and its count."""
    order = np.lexsort((following, keys))
    keys, following = keys[order], following[order]
    new = np.ones(len(keys), bool)
    new[1:] = (np.diff(keys) != 0) | (np.diff(following) != 0)
    firsts = np.flatnonzero(new)
    counts = np.diff(firsts, append=len(keys))
    keys, following = keys[firsts], following[firsts]
    kept = _most_frequent(keys, counts)
    keys, following, counts = keys[kept], following[kept], counts[kept]
    contexts, starts = np.unique(keys, return_index=True)
    return contexts, np.append(starts, len(keys)), following, counts


def _most_frequent(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each entry is among the MOST_FOLLOWING most frequent of its key; the first of a tie wins."""
    order = np.lexsort((-counts, keys))
    _, starts, sizes = np.unique(keys, return_index=True, return_counts=True)
    rank = np.arange(len(keys)) - np.repeat(starts, sizes)
    kept = np.zeros(len(keys), bool)
    kept[order[rank < MOST_FOLLOWING]] = True
    return kept
