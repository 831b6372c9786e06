"""How often guesses were kept lately, by text, by drafter or by kind of guess: what every choice to guess rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxspec.runtime.events import Round

FORGET = 0.98  # weight of the past acceptance after each round,
LEAST_WEIGHT = 0.01  # down to this number of evaluated tokens; then anything new decides
PRIOR = (3.0, 4.0)  # accepted and evaluated tokens that are assumed at first
PRIOR_WEIGHT = 16.0  # evaluated tokens that the other texts' acceptance stands for at most


@dataclass(slots=True)
class Share:
    """The share of guesses that were kept, by default of a drafter's tokens; the past weighs `forget` after each."""

    kept: float = PRIOR[0]
    seen: float = PRIOR[1]
    forget: float = FORGET

    @classmethod
    def like(cls, other: Share) -> Share:
        """The prior of a new text, from the other texts: it weighs more the more tokens of theirs were evaluated."""
        weight = min(max(other.seen, PRIOR[1]), PRIOR_WEIGHT)
        return cls(other.value * weight, weight)

    @property
    def value(self) -> float:
        return self.kept / self.seen

    def observe(self, kept: float, seen: float = 1.0) -> None:
        """Learn from guesses, of which some were kept."""
        if self.seen > LEAST_WEIGHT:
            self.kept *= self.forget
            self.seen *= self.forget
        self.kept += kept
        self.seen += seen

    def observe_round(self, done: Round) -> None:
        """Learn from a round. Rounds of plain decoding also forget, because the text may have changed since.

        A call of the draft without a token worth scoring counts as a token that was rejected.
        """
        in_vain = done.stopped and done.accepted == done.drafted
        self.observe(done.accepted, done.evaluated + in_vain)


class Shares:
    """A share for each kind of guess, learnt from every guess, whether it was proposed or not."""

    def __init__(self, expected: Sequence[float], weight: float, forget: float) -> None:
        """`expected` is the share of each kind before anything was seen, with the weight of so many guesses."""
        self._shares = [Share(weight * share, weight, forget) for share in expected]

    def share(self, kind: int) -> float:
        """The share of the guesses of this kind that came true."""
        return self._shares[kind].value

    @property
    def mean(self) -> float:
        """The share over all kinds."""
        return sum(share.kept for share in self._shares) / sum(share.seen for share in self._shares)

    def observe(self, kind: int, kept: bool) -> None:
        """A guess came true, or did not."""
        self._shares[kind].observe(kept)
