"""How often guesses are kept, place by place, and what that gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`rates` are shares of guesses that the target takes, at each place after the guesses before it were taken."""

    rates: tuple[float, ...]

    @classmethod
    def of(cls, counts: Iterable[Sequence[tuple[int, int]]]) -> Acceptance:
        """From (reached, taken) at each place of each text."""
        totals = np.sum([np.array(each) for each in counts], axis=0)
        return cls(tuple(float(taken) / max(float(reached), 1.0) for reached, taken in totals))

    def tokens(self, k: int) -> float:
        """Tokens of a round with k guesses (Leviathan et al. 2023, equation 1, with a rate for each place)."""
        return 1 + float(np.cumprod(self.rates[:k]).sum())

    def speedup(self, cost: float) -> tuple[float, int]:
        """The largest predicted speedup and its k; a guess costs `cost` steps of the target, a round's scores one."""
        return max((self.tokens(k) / (1 + k * cost), k) for k in range(1, len(self.rates) + 1))
