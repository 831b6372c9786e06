"""From which probability on a drafted token is worth its time, and when to try drafting again after it did not pay."""

from __future__ import annotations

from dataclasses import dataclass

from mxspec.runtime.policy.costs import Costs

WORTH_ROWS = 4  # rows over which the cost of one row is averaged
LEAST_WORTH, MOST_WORTH = 0.05, 0.9
SHORTEST_PAUSE, LONGEST_PAUSE = 16, 2048  # steps until the next try
TRY_BUDGET = 0.005  # tries may lose at most this share of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The cost of a drafted token, as a share of the time for a token without drafting.

    A token that is kept with a smaller probability costs more than it gains.
    """

    row: float = 0.0  # one more row in the target's call
    start: float = 0.0  # the first added row: going from one token to two may cost more than another row
    call: float = 0.0  # a row and a call of the drafter

    @property
    def all_wanted(self) -> bool:
        """Whether all requested tokens are proposed, however unlikely they are."""
        return self.row == 0


ALL_WANTED = BreakEven()


def break_even_of_row(costs: Costs, texts: int) -> float:
    """The probability from which a token is worth its row in a call for `texts` texts.

    Another row costs some seconds; a kept token saves the time of a step for one text. An unknown cost counts as small.
    """
    plain = costs.seconds(texts)
    if not costs.tell_growth or plain <= 0:
        return LEAST_WORTH
    row = (costs.seconds(texts + WORTH_ROWS) - plain) / WORTH_ROWS
    return min(max(row * texts / plain, LEAST_WORTH), MOST_WORTH)


def break_even_of_first_row(costs: Costs, texts: int) -> float:
    """The probability from which the first row beyond one for each text is worth its cost."""
    plain = costs.seconds(texts)
    return max(costs.seconds(texts + 1) - plain, 0.0) * texts / plain if plain > 0 else 0.0


@dataclass(slots=True)
class Tries:
    """The pause until the next try: longer if a try loses more, and after each try that did not pay."""

    _pause: int = SHORTEST_PAUSE

    def due(self, steps: int, steps_lost: float = 0.0) -> bool:
        """Whether to try, `steps` after the last try; a try would lose the time of `steps_lost` plain steps."""
        return steps >= min(max(self._pause, steps_lost / TRY_BUDGET), LONGEST_PAUSE)

    def tried(self, steps_lost: float) -> None:
        """Note a try that is expected to lose the time of `steps_lost` plain steps."""
        self._pause = int(min(max(2 * self._pause, steps_lost / TRY_BUDGET), LONGEST_PAUSE))

    def paid(self) -> None:
        """Note that drafting pays now; after it stops paying, the next try comes soon."""
        self._pause = SHORTEST_PAUSE
