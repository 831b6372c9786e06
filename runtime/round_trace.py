"""What a round decided: each drafted token, what both models thought of it, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["accepted", "rejected", "discarded"]
NextKind = Literal["replacement", "bonus", "plain"]
Why = Literal["prompt", "fixed", "cost", "room", "grammar", "drafter", "reading"]


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A drafted token. `discarded` ones came after the first rejected one, or after the end of the text.

    Probabilities are those that the verifier compared: shaped. A greedy text compares none; there they are the models'
    own after bias, penalties and masks. None: the drafter gives no probability, or the target was not asked.
    """

    token: int
    origin: str
    draft_probability: float | None
    target_probability: float | None
    decision: Decision


@dataclass(frozen=True, slots=True)
class Next:
    """The target's own token: in the place of a rejected one, after all that were kept, or with nothing drafted."""

    token: int
    kind: NextKind
    draft_probability: float | None
    target_probability: float


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round, which was to draft `k` tokens."""

    k: int
    why: Why
    guesses: tuple[DraftedToken, ...]
    next: Next | None  # None where the text ended before it
