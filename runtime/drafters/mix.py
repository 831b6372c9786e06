"""Each round by the drafter that promises the most for its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mxspec.runtime.drafters.drafter import ByText, Drafter, Wanted
from mxspec.runtime.drafters.guess import SaysChances, gain
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.events import Round
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import Tries
from mxspec.runtime.policy.shares import Share

RECENT = 0.1  # weight of the latest call's seconds in the running mean


@dataclass(slots=True)
class _Memory:
    """What each member remembers of a text, and how well the draft model guessed."""

    of: dict[str, Any]
    acceptance: Share
    asked: int = 0  # tokens that a round has if the model, which was asked, gives as many as it was asked for
    since: int = 0  # rounds in which the model was not asked


@dataclass(frozen=True, slots=True)
class Offer:
    """Number of tokens that a member would propose, and the expected gain in tokens, less its cost in tokens."""

    member: Drafter | None
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
        self._kept = Share()  # of the model's guesses, in all texts
        self._tries = Tries()  # when to try the model again where it does not pay
        self._call_seconds = 0.0  # seconds of a call of the draft model
        self._step_seconds = 0.0  # seconds of a step of the target

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        """The draft model's lag; up to what one call can read, the model reads when it is chosen."""
        if self._model is None or not self._model.limit(len(tokens), len(slot.source)):
            return 0
        lag = self._model.lag(tokens, slot)
        return lag if lag > self._model.draft.session.chunk else 0

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        assert self._model is not None
        self._model.read(pieces)

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> _Memory:
        members = {name: member.begin(tokens, cache_key, source) for name, member in self._members.items()}
        return _Memory(members, Share.like(self._kept))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        by_member: dict[str, list[Wanted]] = {}
        for want in wanted:
            best = self._best(want)
            if best.member is not None:
                if best.member is self._model:
                    want.memory.asked = len(want.proposal.tokens) + best.k
                memory = want.memory.of[best.member.name]
                break_even = replace(want.break_even, call=want.break_even.row + self._call_share)
                own = replace(want, memory=memory, k=best.k, break_even=break_even)
                by_member.setdefault(best.member.name, []).append(own)
        for name, wants in by_member.items():
            reads = any(self._members[name].lag(want.tokens, want.slot) > 2 for want in wants)  # what it has missed
            calls = self._members[name].propose(wants)[1 if reads else 0 :]
            if calls:
                seconds = sum(seconds for _, seconds in calls) / len(calls)
                self._call_seconds = _recent(self._call_seconds, seconds)
        return []

    def observe(self, memory: _Memory, done: Round) -> None:
        memory.since = 0 if memory.asked else memory.since + 1
        self._step_seconds = _recent(self._step_seconds, done.target_seconds)
        if memory.asked:
            judged = replace(done, stopped=done.drafted < memory.asked)
            memory.acceptance.observe_round(judged)
            self._kept.observe_round(judged)
        else:
            memory.acceptance.observe(0, 0)
        memory.asked = 0
        for name, member in self._members.items():
            member.observe(memory.of[name], done)

    def end(self, memory: _Memory, tokens: Sequence[int]) -> None:
        for name, member in self._members.items():
            member.end(memory.of[name], tokens)

    @property
    def _call_share(self) -> float:
        """Seconds of a call of the model, in steps of the target."""
        return self._call_seconds / self._step_seconds if self._step_seconds else 0.0

    def _best(self, want: Wanted) -> Offer:
        """The offer that promises the most after a text; or the model's, where it is time to try it again."""
        best = NOTHING
        for member in self._guessing:
            chances = member.chances(replace(want, memory=want.memory.of[member.name]))
            best = max(best, Offer(member, len(chances), gain(chances, want.break_even)), key=_gain)
        if self._model is None or not (by_model := self._offers_of_model(want, self._model)):
            return best
        if (best_by_model := max(by_model, key=_gain)).gain > best.gain:
            self._tries.paid()
            return best_by_model
        lost = best.gain - by_model[0].gain
        if self._tries.due(want.memory.since, lost):
            self._tries.tried(lost)
            return by_model[0]
        return best

    def _offers_of_model(self, want: Wanted, model: ModelDrafter) -> list[Offer]:
        """An offer for each K, by the share of guesses kept and the cost of a call in steps of the target."""
        length = len(want.tokens) + len(want.proposal.tokens)
        most = min(want.k, model.limit(length, len(want.slot.source)))
        if want.break_even.all_wanted and most:
            return [Offer(model, most, float(most))]
        chances = [want.memory.acceptance.value**k for k in range(1, most + 1)]
        break_even = want.break_even.with_calls(self._call_share)
        return [Offer(model, k, gain(chances[:k], break_even)) for k in range(1, most + 1)]


NOTHING = Offer(None, 0, 0.0)


def _gain(offer: Offer) -> float:
    return offer.gain


def _recent(mean: float, value: float) -> float:
    return value if mean == 0 else (1 - RECENT) * mean + RECENT * value
