"""The best formats under a budget, one for each product: an exact multiple-choice knapsack by dynamic programming.

State b holds the least loss with b quanta of bytes beyond the smallest choice. A quantum is the largest number that
divides all differences of bytes. If this makes more than STATES states, the quantum is larger, and the differences are
rounded up: a choice then never exceeds the budget, but may leave one byte in 65,536 unused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STATES = 1 << 16


@dataclass(frozen=True, slots=True)
class Option:
    """A product's bytes in a format, and its loss there in nats a token."""

    bytes: int
    loss: float


Options = Mapping[str, Option]  # of one product, by format


def within_bytes(products: Sequence[Options], most: int) -> list[str] | None:
    """The formats of products with the least total loss in at most `most` bytes; None if no choice is small enough."""
    table = _Table(products)
    if most < table.smallest:
        return None
    state = min((most - table.smallest) // table.quantum, table.last)
    return table.formats(state)


def within_loss(products: Sequence[Options], most: float) -> list[str] | None:
    """The formats of products with the fewest bytes and a total loss of at most `most`; None if no choice has one."""
    table = _Table(products)
    (found,) = np.nonzero(table.losses <= most)
    return table.formats(int(found[0])) if len(found) else None


class _Table:
    """`losses` float64[states], and the choices that lead to them."""

    def __init__(self, products: Sequence[Options]) -> None:
        self._products = products
        smallest = [min(option.bytes for option in options.values()) for options in products]
        self.smallest = sum(smallest)
        beyond = [
            {name: option.bytes - least for name, option in options.items()}
            for options, least in zip(products, smallest, strict=True)
        ]
        most = sum(max(options.values()) for options in beyond)
        self.quantum = max(
            math.gcd(*(count for options in beyond for count in options.values())), -(-most // STATES), 1
        )
        self._quanta = [{name: -(-count // self.quantum) for name, count in options.items()} for options in beyond]
        self.last = sum(max(options.values()) for options in self._quanta)
        self.losses = np.zeros(self.last + 1)
        self._chosen = [self._add(*both) for both in zip(products, self._quanta, strict=True)]

    def formats(self, state: int) -> list[str]:
        """The choice of a state."""
        names = []
        for options, quanta, chosen in zip(
            reversed(self._products), reversed(self._quanta), reversed(self._chosen), strict=True
        ):
            name = list(options)[chosen[state]]
            names.append(name)
            state -= quanta[name]
        return names[::-1]

    def _add(self, options: Options, quanta: Mapping[str, int]) -> NDArray[np.int8]:
        """Add a product: each state chooses among its options, those of fewer bytes first."""
        before, self.losses = self.losses, np.full(self.last + 1, np.inf)
        chosen = np.zeros(self.last + 1, np.int8)
        order = sorted(enumerate(options), key=lambda numbered: (quanta[numbered[1]], options[numbered[1]].loss))
        for number, name in order:
            moved = np.full(self.last + 1, np.inf)
            moved[quanta[name] :] = before[: self.last + 1 - quanta[name]] + options[name].loss
            better = moved < self.losses
            self.losses[better], chosen[better] = moved[better], number
        return chosen
