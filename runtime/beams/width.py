"""How wide and how far a draft guesses of a beam search, by what steps cost: not at all where it does not pay.

A draft's search of u beams for K steps gives 1 to K + 1 steps of the target's in one call. With a the share of steps
whose best N beams all lie in the trellis, it gives (1 - a^(K+1)) / (1 - a) on average; it costs a call of the target
over the trellis, and K calls of the draft. Like K by load it is chosen from the past alone, and changes no text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from mxspec.runtime.events import Round
from mxspec.runtime.policy.choose_k import Acceptance, expected_tokens
from mxspec.runtime.policy.costs import Costs

LEAVES = 1.3  # leaves of a trellis over the draft's beams, before any was seen
PLAIN_WEIGHT = 0.05  # of the latest plain step
SEEN_WEIGHT = 0.2  # of the latest trellis' tokens
FIRST_STEPS = 2  # K of the first tries
FIRST_ROUNDS = 2  # of a size until its cost is known, after one that does not count
PRIOR = (1.0, 2.0)  # steps kept, looked at: what is believed before anything was seen
MARGIN = 1.05  # over plain steps, that a choice has to promise
TRIED_ROUNDS = 3
KEEP_ROUNDS = 4  # that a choice stands
SHORTEST_PAUSE = 16  # plain steps until drafting is tried again
PLAIN_EVERY = 8  # choices that pay until a plain step is seen again
BUDGET = 0.003  # of the time that drafting may lose over plain steps, however wrong what it promised was,
FIRST_LOSS = 4.0  # and so many plain steps' time at the beginning, to learn what it costs;
MOST_CREDIT = 20.0  # of what it has gained before so many plain steps' time counts against that


@dataclass(frozen=True, slots=True, order=True)
class Width:
    """`beams` of the draft for `steps`; none of either is a plain step."""

    beams: int = 0
    steps: int = 0


PLAIN = Width()


@dataclass(frozen=True, slots=True)
class SearchLoad:
    """What a search is to those who choose: `beams` live ones, at most `room` steps ahead, in at most `slots` slots.

    `beside` are the tokens of others in the same call.
    """

    beams: int
    room: int
    slots: int
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """What a round of a search took: tokens of its own and of all in the target's call, and the call with all after it.

    `calls` are the draft's: beams, and seconds; `drafting` all seconds of it, those that it took to catch up included.
    """

    own_tokens: int
    tokens: int
    seconds: float
    calls: Sequence[tuple[int, float]] = ()
    drafting: float = 0.0
    chosen: bool = True  # the width was


def _shares() -> defaultdict[str, Acceptance]:
    return defaultdict(Acceptance)


@dataclass(slots=True)
class Widths:
    """Chooses for the searches of an engine; learns from each of their steps.

    What drafting has lost over plain steps is kept account of: beyond a budget there is none, whatever it promises.
    """

    most: int  # steps ahead
    shares: defaultdict[str, Acceptance] = field(default_factory=_shares)  # of steps that were kept, by name()
    score: Costs = field(default_factory=Costs)  # a step with a search but for its drafting, by tokens of the call
    draft: Costs = field(default_factory=Costs)  # a call of the draft and what is made of it, by beams
    _tokens: dict[tuple[int, Width], float] = field(default_factory=dict)  # of a trellis, for so many live beams
    _plain_steps: int = 0  # since the last round of drafting
    _paying: int = 0  # choices that promised to pay
    _tries: int = 0
    _choice: Width = PLAIN  # which stands
    _stands: int = 0  # for so many rounds more,
    _chosen_for: int = 0  # of searches of so many beams
    _plain: dict[int, float] = field(default_factory=dict)  # seconds of a plain step, smoothed, by tokens of the call
    _spent: float = 0.0  # seconds of all rounds whose width was chosen,
    _lost: float = 0.0  # and how many of them drafting has lost

    def choose(self, load: SearchLoad) -> Width:
        """For the next round of a search."""
        if self._allowed(load) <= 0 or load.room == 0 or load.slots < load.beams:
            return PLAIN
        if self._stands == 0 or self._chosen_for != load.beams:
            self._choice, self._stands = self._choose(load)
            self._chosen_for = load.beams
        self._stands -= 1
        width = Width(min(self._choice.beams, load.slots), min(self._choice.steps, load.room))
        return width if width.beams >= load.beams else PLAIN

    def _choose(self, load: SearchLoad) -> tuple[Width, int]:
        """What to do, and for how many rounds: thinking in each would cost a small model's step some percents."""
        widths = self._widths(load)
        if self.score.count(load.beams + load.beside) < FIRST_ROUNDS:
            return PLAIN, 1
        if (first := self._first_try(load, widths)) is not None:
            return first, 1
        best = max(widths, key=lambda width: self.speed(load, width))
        plain = self.speed(load, PLAIN)
        if self.speed(load, best) > MARGIN * plain:
            self._paying += 1
            return (PLAIN, 1) if self._paying % PLAIN_EVERY == 0 else (best, KEEP_ROUNDS)
        if self._plain_steps >= SHORTEST_PAUSE and self._may_ever_pay(load, widths, plain):
            tried = self._worth_a_try(load, widths)
            if tried is not None:
                return tried, TRIED_ROUNDS
        return PLAIN, SHORTEST_PAUSE

    def _worth_a_try(self, load: SearchLoad, widths: list[Width]) -> Width | None:
        """What does not promise to pay is tried, if the budget allows what it is expected to lose.

        The widest search and any other alternate: what it keeps is what changes most with the text.
        """
        most = max(width.beams for width in widths)
        some = [width for width in widths if width.beams == most] if self._tries % 2 == 0 else widths
        best = max(some, key=lambda width: self.speed(load, width))
        lost = self._seconds(load, best) - self._expected(load, best) * self._seconds(load, PLAIN)
        if TRIED_ROUNDS * lost > self._allowed(load):
            return None
        self._tries += 1
        return best

    def observe(self, load: SearchLoad, width: Width, done: Round, spent: Spent) -> None:
        """A round of a search is over."""
        self.score.add(spent.tokens, spent.seconds)
        if width.steps == 0:
            size = load.beams + load.beside
            seen = self._plain.setdefault(size, spent.seconds)
            self._plain[size] += PLAIN_WEIGHT * (spent.seconds - seen)
        if spent.chosen:
            self._account(load, width, done, spent)
        if width.steps == 0:
            return
        for beams, seconds in spent.calls:
            self.draft.add(beams, seconds)
        share = self.shares[name(load.beams, width.beams)] = self._share(load, width)
        share.observe(done)
        key = load.beams, width
        seen = self._tokens.setdefault(key, spent.own_tokens)
        self._tokens[key] += SEEN_WEIGHT * (spent.own_tokens - seen)

    def catch_up(self, load: SearchLoad, seconds: float) -> None:
        """The draft has read what it had missed, beside a plain step."""
        self._spent += seconds
        self._lose(seconds, self._plain_seconds(load))

    def tokens(self, load: SearchLoad, width: Width) -> int:
        """How many tokens a search adds to a call."""
        if width.steps == 0:
            return load.beams
        seen = self._tokens.get((load.beams, width))
        return round(min(LEAVES * width.beams, load.slots) * (width.steps + 1) if seen is None else seen)

    def speed(self, load: SearchLoad, width: Width) -> float:
        """Expected steps a second."""
        seconds = self._seconds(load, width)
        return self._expected(load, width) / seconds if seconds > 0 else 0.0

    def _allowed(self, load: SearchLoad) -> float:
        """Seconds that drafting may lose yet."""
        return BUDGET * self._spent + FIRST_LOSS * self._plain_seconds(load) - self._lost

    def _account(self, load: SearchLoad, width: Width, done: Round, spent: Spent) -> None:
        """What the round has gained or lost over plain steps."""
        seconds, plain = spent.seconds + spent.drafting, self._plain_seconds(load)
        self._spent += seconds
        self._plain_steps = 0 if width.steps else self._plain_steps + 1
        if width.steps:
            self._lose(seconds - done.emitted * plain, plain)

    def _plain_seconds(self, load: SearchLoad) -> float:
        size = load.beams + load.beside
        return self._plain.get(size, self.score.seconds(size))

    def _lose(self, seconds: float, plain: float) -> None:
        self._lost = max(self._lost + seconds, -MOST_CREDIT * plain)

    def _expected(self, load: SearchLoad, width: Width) -> float:
        """Steps of a round."""
        return expected_tokens(self._share(load, width).share, width.steps) if width.steps else 1.0

    def _share(self, load: SearchLoad, width: Width) -> Acceptance:
        """Of steps that are kept; of a width that nobody has seen that of the nearest that somebody has."""
        own = name(load.beams, width.beams)
        if own not in self.shares:
            known = [beams for beams in _beams(load.beams) if name(load.beams, beams) in self.shares]
            nearest = min(known, key=lambda beams: abs(beams - width.beams), default=None)
            return Acceptance(*PRIOR) if nearest is None else Acceptance.like(self.shares[name(load.beams, nearest)])
        return self.shares[own]

    def _seconds(self, load: SearchLoad, width: Width) -> float:
        drafting = 0.0
        if width.steps:
            drafting = self.draft.seconds(load.beams) + (width.steps - 1) * self.draft.seconds(width.beams)
        return self.score.seconds(self.tokens(load, width) + load.beside) + drafting

    def _widths(self, load: SearchLoad) -> list[Width]:
        most = min(self.most, load.room)
        return [Width(u, k) for u in _beams(load.beams) if u <= load.slots for k in range(1, most + 1)]

    def _first_try(self, load: SearchLoad, widths: list[Width]) -> Width | None:
        """The widest, for some steps, as long as nothing like it has been seen."""
        width = max(width for width in widths if width.steps == min(FIRST_STEPS, load.room, self.most))
        known = self.score.count(self.tokens(load, width) + load.beside) >= FIRST_ROUNDS
        return None if known and self.draft.sizes else width

    def _may_ever_pay(self, load: SearchLoad, widths: list[Width], plain: float) -> bool:
        """Whether some width would be faster than none if all its steps were kept."""
        best = max((width.steps + 1) / max(self._seconds(load, width), 1e-9) for width in widths)
        return best > plain


def _beams(beams: int) -> list[int]:
    """What the draft's search may have: as many as the target's, half as many more, twice as many."""
    return sorted({beams, beams + beams // 2, 2 * beams})


def name(beams: int, width: int) -> str:
    """What the share of steps is called that a draft of `width` beams keeps for a search of `beams`."""
    return f"{beams} beams of {width}"
