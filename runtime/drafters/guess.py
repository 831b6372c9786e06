"""A continuation that was seen elsewhere, and how much of it is likely to come true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxspec.runtime.policy.break_even import BreakEven
from mxspec.runtime.policy.shares import Shares

# By the bit length of the number of tokens that matched: 0, 1, 2 to 3, 4 to 7, … 32 and more. About what comes true in
# source code; a text's own figures replace it within some 16 guesses.
EXPECTED = (0.0, 0.1, 0.3, 0.6, 0.8, 0.9, 0.95)
RATE = 1 / 16  # weight of the latest guess
MARGIN = 1.2  # least ratio of the promised tokens to their cost


def shares_by_match() -> Shares:
    """The share of copied tokens that came true, by the number of tokens before them that had matched."""
    return Shares(EXPECTED, 1 / RATE, 1 - RATE)


def kind_of_match(matched: int) -> int:
    """The kind of a guess after `matched` tokens that matched."""
    return min(matched.bit_length(), len(EXPECTED) - 1)


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that followed the `matched` last tokens somewhere, and whose experience says what they are worth."""

    tokens: Sequence[int]
    matched: int
    kept: Shares

    def chances(self, least: float = 0.0) -> list[float]:
        """For each token the chance that it and all before it come true, while that is at least `least`.

        The match grows with every token that comes true.
        """
        chance, chances = 1.0, []
        for place in range(len(self.tokens)):
            chance *= self.kept.share(kind_of_match(self.matched + place))
            if chance < least:
                break
            chances.append(chance)
        return chances

    def worthwhile(self, break_even: BreakEven) -> list[int]:
        """The tokens that are worth their row; an empty list where all of them promise less than they cost."""
        chances = self.chances(break_even.row)
        return list(self.tokens[: len(chances)]) if gain(chances, break_even) >= 0 else []

    def compare(self, written: Sequence[int]) -> None:
        """Learn from the tokens that were written in place of the guess."""
        for place, (token, real) in enumerate(zip(self.tokens, written, strict=False)):
            self.kept.observe(kind_of_match(self.matched + place), token == real)
            if token != real:
                break


def gain(chances: Sequence[float], break_even: BreakEven) -> float:
    """Tokens that a proposal promises, less those that its time would have given, with a margin for uncertainty."""
    cost = max(break_even.start, break_even.row) + break_even.row * (len(chances) - 1)
    return sum(chances) - MARGIN * cost if chances else 0.0
