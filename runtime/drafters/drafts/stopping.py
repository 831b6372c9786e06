"""Where a round of a draft model stops guessing for a text: where a guess is not likely enough to be kept.

Whether a place is drafted depends on distributions and on what was kept before, never on the token drawn there: that
would bias the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.drafters.drafts.sureness import Sureness, peak_probability
from mxspec.runtime.events import Round
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.truncate import Indices

Judged = tuple[Sureness, int]  # the statistics that a level belongs to, and the level


@dataclass(slots=True)
class Stopping:
    """How far a round has guessed for one text, and whether it is worth going on."""

    want: Wanted
    sureness: Sureness
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
        return self.want.break_even.all_wanted or self.survives * self.sureness.mean >= self.want.break_even.call

    def pays(self, row: Logits) -> bool:
        """Whether the token that a row gives is worth being scored."""
        if self.want.break_even.all_wanted:
            return True
        level = self.sureness.level(peak_probability(row))
        self.survives *= self.sureness.share(level)
        self.stopped = self.survives < self.want.break_even.row
        if not self.stopped:
            self.judged.append((self.sureness, level))
        return not self.stopped

    def add_row(self, row: Logits, origin: str, ids: Indices | None) -> bool:
        """Propose the token that a row of the tokens `ids` gives (of all tokens if None); False if the round ends."""
        if self.pays(row) and not self.want.add_row(row, origin, ids):
            self.stopped = True
        return not self.stopped


def learn(judged: list[Judged], done: Round) -> None:
    """Learn which guesses of a finished round were kept."""
    for place, (sureness, level) in enumerate(judged):
        if place < done.evaluated:
            sureness.observe(level, kept=place < done.accepted)
    judged.clear()
