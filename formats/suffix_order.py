"""The order in which a corpus is searched for the ending of a text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

COMPARED = 16  # tokens before an end that its place depends on: longer matches are as good


def suffix_order(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """The ends 0 … n-1 of prefixes of `tokens` int32[n], by the tokens before each, the last one first.

    A prefix that is used up comes before those that go on; ends alike in COMPARED tokens stay in their order. Ranks of
    the last 1, 2, 4, … tokens each make those of twice as many (Manber and Myers 1993).
    """
    ends = np.arange(len(tokens), dtype=np.int64)
    rank = np.zeros(len(tokens), np.int64)  # of the last `compared` tokens before each end, 0 before none
    rank[1:] = tokens[:-1].astype(np.int64) + 1
    order, compared = np.argsort(rank, kind="stable"), 1
    while compared < COMPARED:
        earlier = np.zeros_like(rank)
        earlier[compared:] = rank[:-compared] if compared < len(rank) else 0
        key = rank * (int(rank.max(initial=0)) + 1) + earlier
        order = np.argsort(key, kind="stable")
        changed = np.diff(key[order], prepend=key[order[0]]) != 0
        rank[order] = np.cumsum(changed)
        compared *= 2
    return ends[order].astype(np.int32)
