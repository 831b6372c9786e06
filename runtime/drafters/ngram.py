"""Guesses by what followed the last two tokens, one or none in a text that the bundle was compiled with.

Leviathan et al. (2023), section 3.6: an approximation model may be as cheap as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError
from mxspec.runtime.drafters.drafter import Drafter, Wanted
from mxspec.runtime.drafters.guess import RATE, gain
from mxspec.runtime.policy.shares import Shares
from mxspec.runtime.sampling.distribution import Distribution

LEARN_FROM = 128  # at most this many new tokens are learnt from: a look-up takes some microseconds
SURE = (0.2, 0.4, 0.6, 0.8)  # the likeliest token's probability; each range has a share of its own
EXPECTED = (0.1, 0.2, 0.35, 0.5, 0.7)  # shares that are kept, before anything was seen


class NgramText:
    """How often the likeliest token of the tables was the text's, by how sure they were."""

    def __init__(self, tables: NgramTables) -> None:
        self.tables = tables
        self._seen = 0
        self._shares = [Shares(EXPECTED, 1 / RATE, 1 - RATE) for _ in ORDERS]

    def learn(self, tokens: Sequence[int]) -> None:
        """Learn from the tokens that the text has got since."""
        for place in range(max(self._seen, len(tokens) - LEARN_FROM), len(tokens)):
            if (found := self.tables.after(tokens[max(place - 2, 0) : place])) is not None:
                order, expected = found
                self._shares[order].observe(_sure(expected), expected.likeliest == tokens[place])
        self._seen = len(tokens)

    def share(self, order: int, expected: Distribution) -> float:
        """The share that is kept of the tokens guessed from this order of context, at this probability."""
        return self._shares[order].share(_sure(expected))

    def chances(self, tokens: Sequence[int], ahead: Sequence[int], most: int, least: float) -> list[float]:
        """For up to `most` likeliest tokens the chance that it and all before are kept, if it is at least `least`."""
        self.learn(tokens)
        last, chance = [*tokens[-2:], *ahead], 1.0
        chances: list[float] = []
        while len(chances) < most and (found := self.tables.after(last[-2:])) is not None:
            chance *= self.share(*found)
            if chance < least:
                break
            chances.append(chance)
            last.append(found[1].likeliest)
        return chances


class NgramDrafter(Drafter):
    """Tables of one, two and three tokens with back-off: only the longest known context counts."""

    name = "ngram"

    def __init__(self, tables: NgramTables) -> None:
        self._tables = tables

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> NgramText:
        return NgramText(self._tables)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            self._propose(want)
        return []

    def _propose(self, want: Wanted) -> None:
        """The number of tokens depends on the likeliest ones, not on those that are drawn."""
        memory: NgramText = want.memory
        chances = memory.chances(want.tokens, want.proposal.tokens, want.k, want.break_even.row)
        if gain(chances, want.break_even) < 0:
            return
        last = [*want.tokens[-2:], *want.proposal.tokens]
        for _ in chances:
            found = self._tables.after(last[-2:])
            if found is None or not want.add_choice(found[1], self.name):
                break
            last.append(want.proposal.tokens[-1])


def _sure(expected: Distribution) -> int:
    best = float(expected.weights.max()) / expected.total
    return sum(best >= edge for edge in SURE)


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
    """How often tokens followed one, two, or no particular tokens in a text.

    contexts.N  int64[m]     the N = 1 or 2 last tokens as one number, rising: a, or a · vocabulary + b
    starts.N    int32[m+1]   where the entries of each context begin; N = 0 has one context and neither array
    ids.N       int32[e]     the tokens that followed, rising within a context
    counts.N    int32[e]     how often each did
    """

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
