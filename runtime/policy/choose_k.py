"""Choose the number of tokens that each text drafts in the next step by cost: 0 if drafting does not pay.

A round that drafts k tokens emits (1 - a^(k+1)) / (1 - a) tokens on average, where a is the acceptance (Leviathan et
al. 2023, equation 1). A step costs one call of the target over all tokens of all texts, and one call of the draft for
each position. The j-th drafted token of a text is worth a^j tokens. The best choice therefore drafts all tokens worth
more than some threshold: the one with the most expected tokens a second.

K is chosen from past rounds only, before the round draws a random number, so it changes no text and no distribution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.events import Round
from mxspec.runtime.policy.costs import Costs
from mxspec.runtime.policy.tries import Tries
from mxspec.runtime.policy.worth import Worth, worth_of_first_row, worth_of_row

Ks = NDArray[np.int64]  # [candidates, texts]

FIRST_TRIES = (4, 0)  # a middle K and plain decoding: two points give the approximate cost of the others
FIRST_ROUNDS = 2  # rounds with each of these K, after one that is not counted
MOST_FIRST_ROUNDS = 8  # if every step reads prompts, no step has exactly this size
FORGET = 0.98  # weight of the past acceptance after each round,
LEAST_WEIGHT = 0.01  # down to this number of evaluated tokens; then anything new decides
PRIOR = (3.0, 4.0)  # accepted and evaluated tokens that are assumed at first
PRIOR_WEIGHT = 16.0  # evaluated tokens that the other texts' acceptance stands for
KEEP_STEPS = 4  # steps that keep a choice: choosing in each step would cost a small model some percent of the time
TRY_EVERY = 32  # steps until another K is tried: costs are not smooth, and change with the text's length
WORTH_TRYING, RARELY = 0.8, 100  # a K with less than this share of the best expected speed is tried after RARELY steps
TRIED_ROUNDS = 4  # rounds of a try to draft again after steps of plain decoding


@dataclass(slots=True)
class Acceptance:
    """The recent share of drafted tokens that were kept."""

    accepted: float = PRIOR[0]
    evaluated: float = PRIOR[1]

    @property
    def share(self) -> float:
        return self.accepted / self.evaluated

    @classmethod
    def like(cls, other: Acceptance) -> Acceptance:
        """The prior of a new text, from the other texts."""
        return cls(other.share * PRIOR_WEIGHT, PRIOR_WEIGHT)

    def observe(self, done: Round) -> None:
        """Learn from a round. Rounds of plain decoding also forget, because the text may have changed since.

        A call of the draft without a token worth scoring counts as a token that was rejected.
        """
        self.forget()
        self.accepted += done.accepted
        in_vain = done.stopped and done.accepted == done.drafted
        self.evaluated += done.evaluated + in_vain

    def forget(self) -> None:
        """Note a round in which nothing was evaluated."""
        if self.evaluated > LEAST_WEIGHT:
            self.accepted *= FORGET
            self.evaluated *= FORGET


@dataclass(frozen=True, slots=True)
class Load:
    """A text that takes part in a step: its acceptance, and how many tokens it can draft.

    `k` is None if it is to be chosen; `drafter` is the drafter whose costs count.
    """

    acceptance: float
    room: int
    k: int | None = None
    drafter: str = "model"


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step: tokens of the target's call, seconds without drafting, and the drafters' calls."""

    tokens: int
    seconds: float
    draft_calls: Sequence[tuple[str, int, float]] = ()  # the drafter, texts in the call, and seconds

    @property
    def drafted(self) -> bool:
        return bool(self.draft_calls)


def _acceptances() -> defaultdict[str, Acceptance]:
    return defaultdict(Acceptance)


def _costs() -> defaultdict[str, Costs]:
    return defaultdict(Costs)


@dataclass(slots=True)
class KByLoad:
    """Chooses K for all texts of a step together: 0 to `most`, for the most expected tokens a second.

    It learns from every step, whatever its texts, because costs depend on the machine and the pair.
    """

    most: int
    pair: defaultdict[str, Acceptance] = field(default_factory=_acceptances)  # over all texts, by drafter
    score: Costs = field(default_factory=Costs)  # a step without drafting, by tokens of the target's call
    draft: defaultdict[str, Costs] = field(default_factory=_costs)  # a call of a drafter, by texts
    draft_read: Costs = field(default_factory=Costs)  # a call in which the draft reads, by tokens
    _steps: int = 0
    _plain_steps: int = 0
    _tried: int = 0
    _tries: Tries = field(default_factory=Tries)
    _seen: dict[int, int] = field(default_factory=dict)  # by tokens of a call, the last step with such a call
    _first: dict[int, int] = field(default_factory=dict)  # by tokens of a call, how often it was a first try
    _choice: list[int] = field(default_factory=list)
    _stands_until: int = 0

    def choose(self, loads: Sequence[Load]) -> list[int]:
        """K of each text for the next step."""
        if not any(load.k is None for load in loads):
            return [min(load.k or 0, load.room) for load in loads]
        if self._steps >= self._stands_until or len(loads) != len(self._choice):
            self._choice, steps = self._choose(loads)
            self._stands_until = self._steps + steps
        return [min(k if load.k is None else load.k, load.room) for load, k in zip(loads, self._choice, strict=True)]

    def worth(self, drafter: str, texts: int) -> Worth:
        """The cost of a drafted token in a step of `texts` texts."""
        row, plain = worth_of_row(self.score, texts), self.score.seconds(texts)
        call = self.draft[drafter].seconds(texts) / plain if plain > 0 else 0.0
        return Worth(row=row, start=worth_of_first_row(self.score, texts), call=row + call)

    def observe(self, cost: StepCost) -> None:
        """Learn from the cost of a step."""
        self._steps += 1
        self._seen[cost.tokens] = self._steps
        self.score.add(cost.tokens, cost.seconds)
        for drafter, texts, seconds in cost.draft_calls:
            self.draft[drafter].add(texts, seconds)
        self._plain_steps = 0 if cost.drafted else self._plain_steps + 1

    def _choose(self, loads: Sequence[Load]) -> tuple[list[int], int]:
        """K of each text, and the number of steps that keep this choice."""
        uniform = _uniform(loads, self.most)
        for k in FIRST_TRIES:
            ks = uniform[min(k, self.most)]
            tokens = int(ks.sum()) + len(loads)
            if self.score.count(tokens) < FIRST_ROUNDS and self._first.get(tokens, 0) < MOST_FIRST_ROUNDS:
                self._first[tokens] = self._first.get(tokens, 0) + 1
                return ks.tolist(), 1
        candidates = _by_worth(loads, self.most)
        best = candidates[self._speeds(candidates, loads).argmax()]  # the first of equals
        free = np.array([load.k is None for load in loads])
        deepest = int(best[free].max())
        if deepest > 0:
            self._tries.paid()
            if self._steps - self._tried >= TRY_EVERY:
                self._tried = self._steps
                others = [k for k in (0, deepest - 1, deepest + 1) if k <= self.most]
                return self._other_than(best, uniform[others], loads).tolist(), 1
        elif self._tries.due(self._plain_steps) and self._may_ever_pay(uniform, loads):
            tries = uniform[1:]
            choice = tries[self._speeds(tries, loads).argmax()]
            rounds = -(-TRIED_ROUNDS // int(free.sum()))
            self._tries.tried(rounds * self._steps_lost(choice, loads))
            return choice.tolist(), rounds
        return best.tolist(), KEEP_STEPS

    def _speeds(self, candidates: Ks, loads: Sequence[Load]) -> NDArray[np.float64]:
        """Expected tokens a second of each candidate int[candidates, texts]."""
        expected = np.array([[expected_tokens(load.acceptance, k) for k in range(self.most + 1)] for load in loads])
        gained = expected[np.arange(len(loads)), candidates].sum(axis=1)
        seconds = _each(self.score.seconds, candidates.sum(axis=1) + len(loads))
        for drafter in {load.drafter for load in loads}:
            own = candidates[:, [load.drafter == drafter for load in loads]]
            for position in range(int(own.max())):
                drafting = (own > position).sum(axis=1)
                seconds += np.where(drafting > 0, _each(self.draft[drafter].seconds, drafting), 0.0)
        speeds: NDArray[np.float64] = np.divide(gained, seconds, out=np.zeros_like(gained), where=seconds > 0)
        return speeds

    def _steps_lost(self, choice: NDArray[np.int64], loads: Sequence[Load]) -> float:
        """The expected loss of a step with this choice, in the time of plain steps."""
        plain, drafting = self._speeds(np.vstack([np.zeros_like(choice), choice]), loads)
        gained = sum(expected_tokens(load.acceptance, k) for load, k in zip(loads, choice.tolist(), strict=True))
        return max(gained / len(loads) * (plain / drafting - 1), 0.0) if drafting > 0 else 0.0

    def _may_ever_pay(self, uniform: Ks, loads: Sequence[Load]) -> bool:
        """Whether some K would be faster than 0 if all drafts were kept, or its cost is unknown."""
        plain, *drafting = self._speeds(uniform, [replace(load, acceptance=1.0) for load in loads])
        tokens = uniform[1:].sum(axis=1) + len(loads)
        unknown = any(self.score.count(size) == 0 for size in tokens.tolist())
        return unknown or bool(max(drafting) > plain)

    def _other_than(self, best: NDArray[np.int64], others: Ks, loads: Sequence[Load]) -> NDArray[np.int64]:
        """The least recently seen of the best K's neighbours and plain decoding, if it may pay."""
        speed, *speeds = self._speeds(np.vstack([best, others]), loads)
        unseen = [self._unseen(int(ks.sum()) + len(loads)) for ks in others]
        may_pay = [
            (steps, rate, index)
            for index, (steps, rate) in enumerate(zip(unseen, speeds, strict=True))
            if steps >= RARELY or rate >= WORTH_TRYING * speed
        ]
        return others[max(may_pay)[2]] if may_pay else best

    def _unseen(self, tokens: int) -> int:
        """Number of steps since a call had this number of tokens."""
        seen = self._seen.get(tokens)
        return RARELY if seen is None else self._steps - seen


def _within(ks: Ks, loads: Sequence[Load]) -> Ks:
    """int[candidates, texts] with the fixed K of texts that have one, and each K within the text's room."""
    for text, load in enumerate(loads):
        if load.k is not None:
            ks[:, text] = load.k
    return np.minimum(ks, [load.room for load in loads])


def _uniform(loads: Sequence[Load], most: int) -> Ks:
    """The same K for all texts: candidate k drafts k tokens."""
    return _within(np.repeat(np.arange(most + 1)[:, None], len(loads), axis=1), loads)


def _by_worth(loads: Sequence[Load], most: int) -> Ks:
    """One candidate for each total number of drafted tokens from 0 on; the most valuable tokens come first."""
    worth = np.array([load.acceptance for load in loads])[:, None] ** np.arange(1, most + 1)  # [texts, position]
    thresholds = np.unique(worth[[load.k is None for load in loads]])[::-1]
    reached = (worth >= thresholds[:, None, None]).sum(axis=2)
    return _within(np.vstack([np.zeros((1, len(loads)), np.int64), reached]), loads)


def _each(seconds: Callable[[int], float], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds of calls of these sizes."""
    distinct, where = np.unique(sizes, return_inverse=True)
    return np.array([seconds(size) for size in distinct.tolist()])[where]


def expected_tokens(acceptance: float, k: int) -> float:
    """Mean tokens of a round that drafts k, each kept with the same probability: 1 to k + 1."""
    return k + 1.0 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)
