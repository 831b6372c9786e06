"""How often tokens followed one, two, or no particular tokens in a text: Leviathan's models of negligible cost.

contexts.N  int64[m]     the N = 1 or 2 last tokens as one number, rising: a, or a · vocabulary + b
starts.N    int32[m+1]   where the entries of each context begin; N = 0 has one context and neither array
ids.N       int32[e]     the tokens that followed, rising within a context
counts.N    int32[e]     how often each did
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError
from mxspec.runtime.sampling.distribution import Distribution

ORDERS = (2, 1, 0)  # tokens of context, the longest first
EACH_CONTEXT = "expected entries for each context, one after another"
MOST_FOLLOWING = 64  # entries kept for a context; rarer tokens are not worth a guess


def context_key(last: Sequence[int], vocab_size: int) -> int:
    """One or two tokens as one number."""
    key = 0
    for token in last:
        key = key * vocab_size + token
    return key


class NgramTables:
    """Tables over the token ids of a vocabulary, for contexts of two tokens, one, and none."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], vocab_size: int) -> None:
        """Raises BundleError where the arrays have other names, types or shapes; their content is checked when used."""
        self._arrays, self._vocab = arrays, vocab_size
        for order in ORDERS:
            if (fault := self._fault(order)) is not None:
                raise _damaged(order, fault)

    def after(self, last: Sequence[int]) -> tuple[int, Distribution] | None:
        """The length of the longest known context (two, one or no tokens), and the distribution of what follows it.

        Raises BundleError for invalid entries.
        """
        for order in ORDERS:
            if len(last) >= order and (entries := self._entries(order, last[len(last) - order :])) is not None:
                ids = self._arrays[f"ids.{order}"][entries].astype(np.int64)
                counts = self._arrays[f"counts.{order}"][entries].astype(np.float64)
                if ids[0] < 0 or ids[-1] >= self._vocab or not (ids[1:] > ids[:-1]).all():
                    raise _damaged(order, f"expected rising ids from 0 to {self._vocab - 1}")
                if counts.min() < 1:
                    raise _damaged(order, "expected a count of at least 1 for each id")
                return order, Distribution.of(counts, ids)
        return None

    def _entries(self, order: int, last: Sequence[int]) -> slice | None:
        if order == 0:
            return slice(None) if len(self._arrays["ids.0"]) else None
        contexts, key = self._arrays[f"contexts.{order}"], context_key(last, self._vocab)
        place = int(np.searchsorted(contexts, key))
        if place == len(contexts) or contexts[place] != key:
            return None
        starts = self._arrays[f"starts.{order}"]
        start, end = int(starts[place]), int(starts[place + 1])
        if not 0 <= start < end <= len(self._arrays[f"ids.{order}"]):
            raise _damaged(order, EACH_CONTEXT)
        return slice(start, end)

    def _fault(self, order: int) -> str | None:
        names = ("ids", "counts") if order == 0 else ("contexts", "starts", "ids", "counts")
        missing = [name for name in names if f"{name}.{order}" not in self._arrays]
        if missing:
            return f"{missing[0]} are missing"
        ids, counts = self._arrays[f"ids.{order}"], self._arrays[f"counts.{order}"]
        if len(ids) != len(counts):
            return "expected a count for each id"
        if order == 0:
            return None
        contexts, starts = self._arrays[f"contexts.{order}"], self._arrays[f"starts.{order}"]
        return None if len(starts) == len(contexts) + 1 and starts[-1] == len(ids) else EACH_CONTEXT


def _damaged(order: int, fault: str) -> BundleError:
    return BundleError(f"n-gram table {order}: {fault}; compile the bundle again")
