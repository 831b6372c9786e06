"""Guesses by what followed the last two tokens, one or none in a text that the bundle was compiled with.

Leviathan et al. (2023), section 3.6: an approximation model may be as cheap as a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.drafters.drafter import ByText, Wanted
from mxspec.runtime.drafters.guess import RATE, gain
from mxspec.runtime.drafters.ngram_tables import ORDERS, NgramTables
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


class NgramDrafter(ByText):
    """Tables of one, two and three tokens with back-off: only the longest known context counts."""

    name = "ngram"

    def __init__(self, tables: NgramTables) -> None:
        self._tables = tables

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> NgramText:
        return NgramText(self._tables)

    def chances(self, want: Wanted) -> list[float]:
        memory: NgramText = want.memory
        return memory.chances(want.tokens, want.proposal.tokens, want.k, want.break_even.row)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            self._propose(want)
        return []

    def _propose(self, want: Wanted) -> None:
        """The number of tokens depends on the likeliest ones, not on those that are drawn."""
        chances = self.chances(want)
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
