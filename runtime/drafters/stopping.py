"""Where a round of a draft model stops guessing for a text: where a guess is not likely enough to be kept.

Whether a place is drafted depends on distributions and on what was kept before, never on the token drawn there: that
would bias the text.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.events import Round
from mxspec.runtime.policy.shares import Shares
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.truncate import Indices

LEVELS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # probability of the likeliest token
PRIOR_WEIGHT = 8.0  # weight, in tokens, of the prior that a draft is right as often as its probability says
FORGET = 0.995

Judged = tuple[Shares, int]  # the shares that a level belongs to, and the level


def shares_by_level() -> Shares:
    """How often a draft model's tokens are kept, by how sure it is: by the level of its likeliest token."""
    return Shares([(low + high) / 2 for low, high in pairwise((0.0, *LEVELS, 1.0))], PRIOR_WEIGHT, FORGET)


def level_of(probability: float) -> int:
    """The level of a distribution whose likeliest token has this probability."""
    return bisect_right(LEVELS, probability)


def peak_probability(row: Logits) -> float:
    """The softmax probability of the likeliest token of float32[vocab]; 0 where a row is not finite."""
    weights = np.exp(row - row.max())
    total = float(weights.sum())
    return 1 / total if np.isfinite(total) and total > 0 else 0.0


@dataclass(slots=True)
class Stopping:
    """How far a round has guessed for one text, and whether it is worth going on."""

    want: Wanted
    kept: Shares
    judged: list[Judged]  # the levels of the round's guesses, added to in place
    survives: float = 1.0  # the probability that all guesses so far are kept
    stopped: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether another guess is worth a call of the draft; to be asked before each, whatever call it comes from."""
        if self.stopped or self.want.proposal.errors:
            return False
        return not self.want.proposal.tokens or self.worth_a_call

    @property
    def worth_a_call(self) -> bool:
        """Whether a guess after those so far is likely enough to be kept."""
        return self.want.break_even.all_wanted or self.survives * self.kept.mean >= self.want.break_even.call

    def pays(self, row: Logits) -> bool:
        """Whether the token that a row gives is worth being scored."""
        if self.want.break_even.all_wanted:
            return True
        level = level_of(peak_probability(row))
        self.survives *= self.kept.share(level)
        self.stopped = self.survives < self.want.break_even.row
        if not self.stopped:
            self.judged.append((self.kept, level))
        return not self.stopped

    def add_row(self, row: Logits, origin: str, ids: Indices | None) -> bool:
        """Propose the token that a row of the tokens `ids` gives (of all tokens if None); False if the round ends."""
        if self.pays(row) and not self.want.add_row(row, origin, ids):
            self.stopped = True
        return not self.stopped


def learn(judged: list[Judged], done: Round) -> None:
    """Learn which guesses of a finished round were kept."""
    for place, (kept, level) in enumerate(judged):
        if place < done.evaluated:
            kept.observe(level, place < done.accepted)
    judged.clear()
