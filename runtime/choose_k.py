"""How many tokens each text drafts in the next step, by what steps cost: none where drafting does not pay.

A round that drafts k tokens emits (1 - a^(k+1)) / (1 - a) of them on average, a being the share of drafted tokens that
is kept (Leviathan et al. 2023, equation 1). A step costs one call of the target over all tokens of all texts, and one
call of the draft a position. The j-th drafted token of a text is worth a^j tokens; so the best choice drafts all that
are worth more than some threshold, and the threshold with the most expected tokens a second is taken.

K is chosen before anything of the round is drawn, from the past alone, so no text and no distribution changes by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mxspec.runtime.costs import Costs
from mxspec.runtime.events import Round

FIRST_TRIES = (4, 0)  # a middle K and plain decoding: two points give the cost of the others, about
FIRST_ROUNDS = 2  # of each, after one that does not count
MOST_FIRST_ROUNDS = 8  # where prompts are read in every step, no step is just of this size
FORGET = 0.98  # weight of the acceptance seen so far, a round later,
LEAST_WEIGHT = 0.01  # down to so many evaluated tokens: then anything new decides
PRIOR = (3.0, 4.0)  # accepted, evaluated: what is believed before anything was seen
PRIOR_WEIGHT = 4.0  # evaluated tokens that the other texts' acceptance counts for
KEEP_STEPS = 4  # steps that a choice stands: thinking in each would cost a small model's step some percents
TRY_EVERY = 16  # steps until another K is tried: costs have steps, and change with the text's length and the machine
WORTH_TRYING, RARELY = 0.8, 100  # of the best expected speed; what promises less is tried after so many steps
SHORTEST_PAUSE, LONGEST_PAUSE = 16, 512  # steps of plain decoding until drafting is tried again,
TRIED_ROUNDS = 4  # for so many rounds of texts


@dataclass(slots=True)
class Acceptance:
    """The share of drafted tokens that was kept lately."""

    accepted: float = PRIOR[0]
    evaluated: float = PRIOR[1]

    @property
    def share(self) -> float:
        return self.accepted / self.evaluated

    @classmethod
    def like(cls, other: Acceptance) -> Acceptance:
        """What to believe of a new text, from the others."""
        return cls(other.share * PRIOR_WEIGHT, PRIOR_WEIGHT)

    def observe(self, done: Round) -> None:
        """Rounds of plain decoding forget too: where drafting is tried again, the text may be another."""
        kept = FORGET if self.evaluated > LEAST_WEIGHT else 1.0
        self.accepted = kept * self.accepted + done.accepted
        self.evaluated = kept * self.evaluated + done.evaluated


@dataclass(frozen=True, slots=True)
class Load:
    """A text that takes part in a step: how much of what it drafts is kept, and how much it can draft.

    `k` is None where it is to be chosen.
    """

    acceptance: float
    room: int
    k: int | None = None


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step took: tokens of the target's call, seconds of all but the drafting, and the calls of the draft."""

    tokens: int
    seconds: float
    draft_calls: Sequence[tuple[int, float]] = ()  # texts in the call, and seconds

    @property
    def drafted(self) -> bool:
        return bool(self.draft_calls)


@dataclass(frozen=True, slots=True)
class _Policy:
    """Draft at most `most` tokens, and of each text those that are worth at least `threshold`."""

    most: int
    threshold: float = 0.0

    def k_of(self, load: Load) -> int:
        if load.k is not None:
            return min(load.k, load.room)
        return min(self.most, load.room, _worth(load.acceptance, self.threshold, self.most))


@dataclass(slots=True)
class KByLoad:
    """Chooses K for all texts of a step together: 0 to `most`, for the most expected tokens a second.

    It learns from every step that it hears of, whichever texts those had: costs are the machine's and the pair's.
    """

    most: int
    pair: Acceptance = field(default_factory=Acceptance)  # of all texts together
    score: Costs = field(default_factory=Costs)  # a step but for its drafting, by tokens of the target's call
    draft: Costs = field(default_factory=Costs)  # a call of the draft, by texts
    _steps: int = 0
    _plain_steps: int = 0
    _tried: int = 0
    _pause: int = SHORTEST_PAUSE
    _seen: dict[int, int] = field(default_factory=dict)  # by tokens of a call, the last step that had so many
    _first: dict[int, int] = field(default_factory=dict)  # by tokens of a call, how often it was a first try
    _choice: list[int] = field(default_factory=list)
    _stands_until: int = 0

    def choose(self, loads: Sequence[Load]) -> list[int]:
        """K of each text for the next step."""
        if not any(load.k is None for load in loads):
            return [min(load.k or 0, load.room) for load in loads]
        if self._steps >= self._stands_until or len(loads) != len(self._choice):
            policy, steps = self._choose(loads)
            self._choice = [policy.k_of(load) for load in loads]
            self._stands_until = self._steps + steps
        return [min(k if load.k is None else load.k, load.room) for load, k in zip(loads, self._choice, strict=True)]

    def observe(self, cost: StepCost) -> None:
        """Learn what a step took."""
        self._steps += 1
        self._seen[cost.tokens] = self._steps
        self.score.add(cost.tokens, cost.seconds)
        for texts, seconds in cost.draft_calls:
            self.draft.add(texts, seconds)
        self._plain_steps = 0 if cost.drafted else self._plain_steps + 1

    def _choose(self, loads: Sequence[Load]) -> tuple[_Policy, int]:
        """What to do, and for how many steps."""
        for k in FIRST_TRIES:
            policy = _Policy(min(k, self.most))
            tokens = _tokens(policy, loads)
            if self.score.count(tokens) < FIRST_ROUNDS and self._first.get(tokens, 0) < MOST_FIRST_ROUNDS:
                self._first[tokens] = self._first.get(tokens, 0) + 1
                return policy, 1
        best = max(self._candidates(loads), key=lambda policy: self._speed(policy, loads))  # the first of equals
        deepest = max(best.k_of(load) for load in loads if load.k is None)
        if deepest > 0:
            self._pause = SHORTEST_PAUSE
            if self._steps - self._tried >= TRY_EVERY:
                self._tried = self._steps
                return self._other_than(best, deepest, loads), 1
        elif self._plain_steps >= self._pause:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            tries = [_Policy(k) for k in range(1, self.most + 1)]
            steps = -(-TRIED_ROUNDS // sum(load.k is None for load in loads))
            return max(tries, key=lambda policy: self._speed(policy, loads)), steps
        return best, KEEP_STEPS

    def _candidates(self, loads: Sequence[Load]) -> list[_Policy]:
        """One for each number of tokens that could be drafted, the most valuable first; beginning with none."""
        worth = {load.acceptance**j for load in loads if load.k is None for j in range(1, self.most + 1)}
        return [_Policy(0), *(_Policy(self.most, threshold) for threshold in sorted(worth, reverse=True))]

    def _speed(self, policy: _Policy, loads: Sequence[Load]) -> float:
        """Expected tokens a second."""
        ks = [policy.k_of(load) for load in loads]
        expected = sum(expected_tokens(load.acceptance, k) for load, k in zip(loads, ks, strict=True))
        drafting = sum(self.draft.seconds(sum(k > j for k in ks)) for j in range(max(ks)))
        seconds = drafting + self.score.seconds(len(ks) + sum(ks))
        return expected / seconds if seconds > 0 else 0.0

    def _other_than(self, best: _Policy, deepest: int, loads: Sequence[Load]) -> _Policy:
        """Of the neighbours of the best K and plain decoding the one not seen for longest, if it may pay."""
        speed = self._speed(best, loads)
        tries = [(_Policy(k), self._unseen(_Policy(k), loads)) for k in (0, deepest - 1, deepest + 1) if k <= self.most]
        may_pay = [
            (steps, self._speed(policy, loads), policy)
            for policy, steps in tries
            if steps >= RARELY or self._speed(policy, loads) >= WORTH_TRYING * speed
        ]
        return max(may_pay, key=lambda item: item[:2], default=(0, 0.0, best))[2]

    def _unseen(self, policy: _Policy, loads: Sequence[Load]) -> int:
        seen = self._seen.get(_tokens(policy, loads))
        return RARELY if seen is None else self._steps - seen


def _tokens(policy: _Policy, loads: Sequence[Load]) -> int:
    return sum(1 + policy.k_of(load) for load in loads)


def _worth(acceptance: float, threshold: float, most: int) -> int:
    """How many drafted tokens in a row are worth at least `threshold`, each a^j for the j-th."""
    if threshold <= 0 or acceptance >= 1:
        return most
    if acceptance <= 0:
        return 0
    return int(math.log(threshold) / math.log(acceptance) + 1e-9)


def expected_tokens(acceptance: float, k: int) -> float:
    """Mean tokens of a round that drafts k, each kept with the same probability: 1 to k + 1."""
    return k + 1.0 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)
