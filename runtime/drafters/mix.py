"""Each round by the drafter that promises the most for its cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mxspec.runtime.choose_k import Acceptance
from mxspec.runtime.drafters.drafter import ByText, Drafter, Wanted
from mxspec.runtime.drafters.guess import SaysChances, gain
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.events import Round
from mxspec.runtime.slots import Slot

TRY_EVERY = 64  # rounds until the model is tried again: what is kept of its guesses may have changed
RECENT = 0.1  # weight of the latest call's seconds


@dataclass(slots=True)
class _Memory:
    """What each member remembers of a text, and how the model did."""

    of: dict[str, Any]
    acceptance: Acceptance = field(default_factory=Acceptance)
    by_model: bool = False  # the last proposal
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """How many tokens a member would propose, and the tokens gained less those that the time would have given."""

    member: Drafter
    k: int
    gain: float


class MixDrafter(ByText):
    """Takes the member with the most expected tokens for its cost; which one depends on the clock."""

    name = "mix"
    repeatable = False

    def __init__(self, guessing: Sequence[SaysChances], model: ModelDrafter | None = None) -> None:
        self._guessing, self._model = guessing, model
        self._members: dict[str, Drafter] = {member.name: member for member in guessing}
        if model is not None:
            self._members[model.name] = model
        self._call_seconds = 0.0  # of the draft model
        self._step_seconds = 0.0  # of the target

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        """Of the model; what one call can read, it reads when it is chosen."""
        lag = 0 if self._model is None else self._model.lag(tokens, slot)
        return lag if self._model is not None and lag > self._model.session.chunk else 0

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        assert self._model is not None
        self._model.read(pieces)

    def begin(self, tokens: Sequence[int], cache_key: str) -> _Memory:
        return _Memory({name: member.begin(tokens, cache_key) for name, member in self._members.items()})

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        by_member: dict[str, list[Wanted]] = {}
        for want in wanted:
            best = max(self._offers(want), key=lambda offer: offer.gain)
            want.memory.by_model = best.member is self._model
            if best.k and best.gain >= 0:
                memory = want.memory.of[best.member.name]
                worth = replace(want.worth, call=want.worth.row + self._call_share)
                own = replace(want, memory=memory, k=best.k, worth=worth)
                by_member.setdefault(best.member.name, []).append(own)
        for name, wants in by_member.items():
            began = time.perf_counter()
            calls = self._members[name].propose(wants)
            if calls:
                self._call_seconds = _recent(self._call_seconds, (time.perf_counter() - began) / len(calls))
        return []

    def observe(self, memory: _Memory, done: Round) -> None:
        memory.rounds += 1
        self._step_seconds = _recent(self._step_seconds, done.target_seconds)
        if memory.by_model and done.drafted:
            memory.acceptance.observe(done)
        memory.by_model = False
        for name, member in self._members.items():
            member.observe(memory.of[name], done)

    def end(self, memory: _Memory, tokens: Sequence[int]) -> None:
        for name, member in self._members.items():
            member.end(memory.of[name], tokens)

    @property
    def _call_share(self) -> float:
        """What a call of the model takes, in steps of the target."""
        return self._call_seconds / self._step_seconds if self._step_seconds else 0.0

    def _offers(self, want: Wanted) -> list[Offer]:
        """What each member promises after a text."""
        offers = []
        for member in self._guessing:
            chances = member.chances(replace(want, memory=want.memory.of[member.name]))
            offers.append(Offer(member, len(chances), gain(chances, want.worth)))
        if self._model is not None:
            offers.append(self._offer_of_model(want, self._model))
        return offers

    def _offer_of_model(self, want: Wanted, member: ModelDrafter) -> Offer:
        """The best K by how much of its guesses was kept, and by what a call takes beside a step of the target."""
        most = min(want.k, member.limit(len(want.tokens) + len(want.proposal.tokens)))
        if want.worth.all_wanted or (want.memory.rounds % TRY_EVERY == TRY_EVERY - 1 and most):
            return Offer(member, most if want.worth.all_wanted else 1, float(most))
        chances = [want.memory.acceptance.share**k for k in range(1, most + 1)]
        worth = want.worth.with_calls(self._call_share)
        offers = [Offer(member, k, gain(chances[:k], worth)) for k in range(most + 1)]
        return max(offers, key=lambda offer: offer.gain)


def _recent(mean: float, value: float) -> float:
    return value if mean == 0 else (1 - RECENT) * mean + RECENT * value
