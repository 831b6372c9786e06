"""Choose the number of tokens that each text drafts in the next step by cost: 0 if drafting does not pay.

A round that drafts k tokens emits (1 - a^(k+1)) / (1 - a) tokens on average, where a is the acceptance (Leviathan et
al. 2023, equation 1). A step costs one call of the target over all tokens of all texts, and one call of the draft for
each position. The j-th drafted token of a text is worth a^j tokens. The best choice therefore drafts all tokens worth
more than some threshold: the one with the most expected tokens a second.

K is chosen from past rounds only, before the round draws a random number, so it changes no text and no distribution.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from time import perf_counter

from mxspec.runtime.policy.break_even import BreakEven, Tries, break_even_of_first_row, break_even_of_row
from mxspec.runtime.policy.costs import RECENT, Costs
from mxspec.runtime.policy.shares import Share

Ks = list[int]  # the K of each text

FIRST_TRIES = (4, 0)  # a middle K and plain decoding: two points give the approximate cost of the others
FIRST_ROUNDS = 2  # rounds with each of these K, after one that is not counted
MOST_FIRST_ROUNDS = 8  # if every step reads prompts, no step has exactly this size
KEEP_STEPS = 4  # steps that keep a choice at least,
CHOOSING_BUDGET = 0.01  # and more where choosing would take more than this share of the time,
MOST_KEPT = 32  # up to this number,
MOVED = 0.1  # but no longer once a text's acceptance has changed by this
TRY_EVERY = 32  # steps until another K is tried: costs are not smooth, and change with the text's length
WORTH_TRYING, RARELY = 0.8, 100  # a K with less than this share of the best expected speed is tried after RARELY steps
TRIED_ROUNDS = 4  # rounds of a try to draft again after steps of plain decoding
DEAR = 0.5  # of a plain step: where a mixture's guess costs so much, drafting is chosen anew after every step


@dataclass(frozen=True, slots=True)
class Load:
    """A text that takes part in a step: its acceptance, and how many tokens it can draft.

    `k` is None if it is to be chosen; `drafter` is the drafter whose costs count.
    """

    acceptance: float
    room: int
    k: int | None = None
    drafter: str = "model"


@dataclass(slots=True)
class KByLoad:
    """Chooses K for all texts of a step together: 0 to `most`, for the most expected tokens a second.

    It learns from every step, whatever its texts, because costs depend on the machine and the pair.
    """

    most: int
    pair: defaultdict[str, Share] = field(default_factory=lambda: defaultdict(Share))  # over all texts, by drafter
    score: Costs = field(default_factory=Costs)  # a step without drafting, by tokens of the target's call
    draft: defaultdict[str, Costs] = field(default_factory=lambda: defaultdict(Costs))  # a call of a drafter, by texts
    draft_read: Costs = field(default_factory=Costs)  # a call in which the draft reads, by tokens
    _steps: int = 0
    _plain_steps: int = 0
    _tried: int = 0
    _tries: Tries = field(default_factory=Tries)
    _seen: dict[int, int] = field(default_factory=dict)  # by tokens of a call, the last step with such a call
    _first: dict[int, int] = field(default_factory=dict)  # by tokens of a call, how often it was a first try
    _choice: list[int] = field(default_factory=list)
    _chosen: int = 0  # the step of the last choice,
    _chosen_for: list[float] = field(default_factory=list)  # and the acceptance of each text then
    _stands_until: int = 0
    _choosing: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # seconds of the last choices

    def choose(self, loads: Sequence[Load]) -> list[int]:
        """K of each text for the next step."""
        if not any(load.k is None for load in loads):
            return [min(load.k or 0, load.room) for load in loads]
        if not self._stands(loads):
            began = perf_counter()
            self._choice, steps = self._choose(loads)
            self._chosen, self._stands_until = self._steps, self._steps + steps
            self._chosen_for = [load.acceptance for load in loads]
            self._choosing.append(perf_counter() - began)
        return [min(k if load.k is None else load.k, load.room) for load, k in zip(loads, self._choice, strict=True)]

    def break_even(self, drafter: str, texts: int) -> BreakEven:
        """The cost of a drafted token in a step of `texts` texts."""
        row, plain = break_even_of_row(self.score, texts), self.score.seconds(texts)
        call = self.draft[drafter].seconds(texts) / plain if plain > 0 else 0.0
        return BreakEven(row=row, start=break_even_of_first_row(self.score, texts), call=row + call)

    def observe(self, tokens: int, seconds: float, draft_calls: Sequence[tuple[str, int, float]] = ()) -> None:
        """Learn from a step: tokens of the target's call, seconds without drafting, and each call of a drafter.

        Of a call these are the drafter, the number of texts in it, and its seconds.
        """
        self._steps += 1
        self._seen[tokens] = self._steps
        self.score.add(tokens, seconds)
        for drafter, texts, drafting in draft_calls:
            self.draft[drafter].add(texts, drafting)
        self._plain_steps = 0 if draft_calls else self._plain_steps + 1

    def _stands(self, loads: Sequence[Load]) -> bool:
        """Whether the last choice still holds."""
        if self._steps >= self._stands_until or len(loads) != len(self._choice):
            return False
        if self._steps < self._chosen + KEEP_STEPS:
            return True
        return all(abs(load.acceptance - then) < MOVED for load, then in zip(loads, self._chosen_for, strict=True))

    def _choose(self, loads: Sequence[Load]) -> tuple[Ks, int]:
        """K of each text, and the number of steps that keep this choice."""
        for k in FIRST_TRIES if self.score.expected is None else (0,):
            ks = _uniform(loads, min(k, self.most))
            tokens = sum(ks) + len(loads)
            if self.score.count(tokens) < FIRST_ROUNDS and self._first.get(tokens, 0) < MOST_FIRST_ROUNDS:
                self._first[tokens] = self._first.get(tokens, 0) + 1
                return ks, 1
        best = self._best(loads)
        deepest = max(k for k, load in zip(best, loads, strict=True) if load.k is None)
        if deepest > 0:
            self._tries.paid()
            if self._steps - self._tried >= TRY_EVERY:
                self._tried = self._steps
                others = [_uniform(loads, k) for k in (0, deepest - 1, deepest + 1) if k <= self.most]
                return self._other_than(best, others, loads), 1
        elif self._tries.due(self._plain_steps) and self._may_ever_pay(loads):
            choice = max(self._drafting(loads), key=lambda ks: self._speed(ks, loads))
            if not self._dear(loads):
                rounds = -(-TRIED_ROUNDS // sum(load.k is None for load in loads))
                self._tries.tried(rounds * self._steps_lost(choice, loads))
                return choice, rounds
            lost = self._steps_longer(choice, loads)
            if self._tries.due(self._plain_steps, lost):
                self._tries.tried(lost)
                return choice, 1
        return best, self._steps_kept(len(loads), 1 if deepest > 0 and self._dear(loads) else KEEP_STEPS)

    def _steps_kept(self, texts: int, least: int) -> int:
        """Steps that keep a choice, so that choosing takes a small share of their time: at least `least`."""
        step = self.score.seconds(texts)
        if not self._choosing or step <= 0:
            return least
        choosing = sorted(self._choosing)[len(self._choosing) // 2]
        return min(max(least, math.ceil(choosing / (CHOOSING_BUDGET * step))), MOST_KEPT)

    def _best(self, loads: Sequence[Load]) -> Ks:
        """The K of each text with the most expected tokens a second: tokens join by falling worth while this rises.

        It is in plain Python and adds up, because arrays for every candidate cost a small model as much as a step.
        """
        ks = [min(load.k or 0, load.room) for load in loads]
        gained = sum(expected_tokens(load.acceptance, k) for load, k in zip(loads, ks, strict=True))
        calls = {
            drafter: _Calls(
                self.draft[drafter], [k for k, load in zip(ks, loads, strict=True) if load.drafter == drafter]
            )
            for drafter in {load.drafter for load in loads}
        }
        drafted = sum(ks)
        best, fastest = list(ks), _rate(gained, self.score.seconds(drafted + len(ks)) + _total(calls))
        worth = sorted(
            (-(load.acceptance**place), place, text)
            for text, load in enumerate(loads)
            if load.k is None
            for place in range(1, min(load.room, self.most) + 1)
        )
        for lost, group in groupby(worth, key=itemgetter(0)):  # tokens of the same worth join together
            for _, place, text in group:
                ks[text] = place
                calls[loads[text].drafter].join(place)
                gained -= lost
                drafted += 1
            rate = _rate(gained, self.score.seconds(drafted + len(ks)) + _total(calls))
            if rate > fastest:
                best, fastest = list(ks), rate
        return best

    def _speed(self, ks: Ks, loads: Sequence[Load]) -> float:
        """Expected tokens a second with these K."""
        gained = sum(expected_tokens(load.acceptance, k) for load, k in zip(loads, ks, strict=True))
        return _rate(gained, self._seconds(ks, loads))

    def _seconds(self, ks: Ks, loads: Sequence[Load]) -> float:
        """Expected seconds of a step with these K."""
        seconds = self.score.seconds(sum(ks) + len(ks))
        for drafter in {load.drafter for load in loads}:
            own = [k for k, load in zip(ks, loads, strict=True) if load.drafter == drafter]
            seconds += _Calls(self.draft[drafter], own).seconds
        return seconds

    def _steps_lost(self, choice: Ks, loads: Sequence[Load]) -> float:
        """The expected loss of a step with this choice, in the time of plain steps."""
        plain, drafting = self._speed([0] * len(choice), loads), self._speed(choice, loads)
        gained = sum(expected_tokens(load.acceptance, k) for load, k in zip(loads, choice, strict=True))
        return max(gained / len(loads) * (plain / drafting - 1), 0.0) if drafting > 0 else 0.0

    def _steps_longer(self, choice: Ks, loads: Sequence[Load]) -> float:
        """How much longer a step with this choice takes, in the time of plain steps: its loss if nothing is kept."""
        plain = self._seconds(_uniform(loads, 0), loads)
        return self._seconds(choice, loads) / plain - 1 if plain > 0 else 0.0

    def _dear(self, loads: Sequence[Load]) -> bool:
        """Whether one guess a text costs so much that each decides anew: only mixtures, whose cost is expected."""
        return self.score.expected is not None and self._steps_longer(_uniform(loads, 1), loads) >= DEAR

    def _drafting(self, loads: Sequence[Load]) -> list[Ks]:
        """Every choice of the same K above 0 for all texts."""
        return [_uniform(loads, k) for k in range(1, self.most + 1)]

    def _may_ever_pay(self, loads: Sequence[Load]) -> bool:
        """Whether some K would be faster than 0 if all drafts were kept, or its cost is unknown."""
        kept = [replace(load, acceptance=1.0) for load in loads]
        drafting = self._drafting(loads)
        if any(self.score.count(sum(ks) + len(ks)) == 0 for ks in drafting):
            return True
        plain = self._speed(_uniform(loads, 0), kept)
        return any(self._speed(ks, kept) > plain for ks in drafting)

    def _other_than(self, best: Ks, others: Sequence[Ks], loads: Sequence[Load]) -> Ks:
        """The least recently seen of the best K's neighbours and plain decoding, if it may pay."""
        speed = self._speed(best, loads)
        unseen = [self._unseen(sum(ks) + len(ks)) for ks in others]
        speeds = [self._speed(ks, loads) for ks in others]
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


class _Calls:
    """The calls of one drafter in a step: a call for each position, with all texts that draft so far."""

    def __init__(self, costs: Costs, ks: Sequence[int]) -> None:
        self._costs = costs
        self._texts = [sum(k > place for k in ks) for place in range(max(ks, default=0))]  # by position
        self.seconds = sum(costs.seconds(texts) for texts in self._texts)

    def join(self, place: int) -> None:
        """Let one more text draft its `place`-th token, from 1."""
        if place > len(self._texts):
            self._texts.append(1)
            self.seconds += self._costs.seconds(1)
            return
        texts = self._texts[place - 1]
        self._texts[place - 1] = texts + 1
        self.seconds += self._costs.seconds(texts + 1) - self._costs.seconds(texts)


def _total(calls: Mapping[str, _Calls]) -> float:
    return sum(each.seconds for each in calls.values())


def _rate(tokens: float, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _uniform(loads: Sequence[Load], k: int) -> Ks:
    """The same K for all texts, but for those with a fixed one, and each within its text's room."""
    return [min(k if load.k is None else load.k, load.room) for load in loads]


def expected_tokens(acceptance: float, k: int) -> float:
    """Mean tokens of a round that drafts k, each kept with the same probability: 1 to k + 1."""
    return k + 1.0 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)
