"""From which probability on a drafted token is worth its time."""

from __future__ import annotations

from dataclasses import dataclass

from mxspec.runtime.policy.costs import Costs

WORTH_ROWS = 4  # rows over which the cost of one is averaged
LEAST_WORTH, MOST_WORTH = 0.05, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a drafted token costs, in the time that a text takes for a token without drafting.

    One that is kept with less than this probability costs more than it gives.
    """

    row: float = 0.0  # one more row in the target's call
    start: float = 0.0  # the first of them: a call of two tokens may cost more than one more row
    call: float = 0.0  # a row, and a call of the drafter

    @property
    def all_wanted(self) -> bool:
        """Whether as many tokens as were asked for are proposed, whatever becomes of them."""
        return self.row == 0

    def with_calls(self, call: float) -> Worth:
        """The same of a drafter that takes a call of this cost for each token."""
        return Worth(row=self.row + call, start=self.start + call, call=self.row + call)


ALL_WANTED = Worth()


def worth_of_row(costs: Costs, texts: int) -> float:
    """The probability from which a token is worth its row in a call for `texts` texts.

    A row more costs some seconds; a token saves those that a text takes for one. What is not known yet is tried.
    """
    plain = costs.seconds(texts)
    if costs.sizes < 2 or plain <= 0:
        return LEAST_WORTH
    row = (costs.seconds(texts + WORTH_ROWS) - plain) / WORTH_ROWS
    return min(max(row * texts / plain, LEAST_WORTH), MOST_WORTH)


def worth_of_first_row(costs: Costs, texts: int) -> float:
    """The probability from which the first row beyond one a text is worth its cost."""
    plain = costs.seconds(texts)
    return max(costs.seconds(texts + 1) - plain, 0.0) * texts / plain if plain > 0 else 0.0
