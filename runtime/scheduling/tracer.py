"""Record the rounds of a text while it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mxspec.runtime.drafters.drafter import Proposal
from mxspec.runtime.round_trace import Decision, DraftedToken, Next, NextKind, RoundTrace, Why
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.verifiers.verify import Verdict


def why_k(settings: ChosenSettings, k: int, room: int, forced: int, *, waits: bool) -> Why:
    """Why a round drafts `k` tokens, or the `forced` tokens of a grammar, with room for `room`."""
    if forced and forced >= k:
        return "grammar"
    if waits:
        return "reading"
    if settings.k != "auto":
        return "fixed" if k == settings.k else "room"
    if k == room:
        return "room"
    return "drafter" if settings.drafter.cheap else "cost"


@dataclass(slots=True)
class Tracer:
    """The next round of a text, from the choice of K to the verdict; the first round drafts nothing."""

    _k: int = 0
    _why: Why = "prompt"
    _proposal: Proposal = field(default_factory=Proposal)
    _verdict: Verdict = field(default_factory=lambda: Verdict(0, 0, 0))
    _target: list[float] = field(default_factory=list)

    def plan(self, k: int, why: Why) -> None:
        """Note that the next round drafts `k` tokens."""
        self._k, self._why = k, why

    def see(self, proposal: Proposal, verdict: Verdict, target: Callable[[int, int], float]) -> None:
        """Note the verdict; `target` gives the target's probability of a token at a position. Call it before emit()."""
        seen = [*proposal.tokens[: verdict.evaluated]]
        self._target = [target(place, token) for place, token in enumerate(seen)]
        self._target.append(target(verdict.accepted, verdict.next_token))
        self._proposal, self._verdict = proposal, verdict
        if len(proposal.tokens) < self._k and self._why != "reading":
            self._why = "drafter"  # the drafter stopped early

    def round(self, emitted: int) -> RoundTrace:
        """The trace of the round, which emitted `emitted` tokens."""
        places = range(len(self._proposal.tokens))
        ended = emitted <= self._verdict.accepted
        return RoundTrace(
            self._k, self._why, tuple(self._guess(place, emitted) for place in places), None if ended else self._next()
        )

    def _guess(self, place: int, emitted: int) -> DraftedToken:
        token = self._proposal.tokens[place]
        seen = place < self._verdict.evaluated
        return DraftedToken(
            token,
            self._proposal.origins[place],
            self._draft(place, token) if self._proposal.distributions else self._proposal.confidences.get(place),
            self._target[place] if seen else None,
            self._decision(place, emitted),
        )

    def _decision(self, place: int, emitted: int) -> Decision:
        if place < min(self._verdict.accepted, emitted):
            return "accepted"
        return "rejected" if place == self._verdict.accepted else "discarded"

    def _next(self) -> Next:
        place, token = self._verdict.accepted, self._verdict.next_token
        count = len(self._proposal.tokens)
        kind: NextKind = "plain" if not count else "bonus" if place == count else "replacement"
        return Next(token, kind, self._draft(place, token), self._target[-1])

    def _draft(self, place: int, token: int) -> float | None:
        """The draft's probability of the token; None for greedy text, which has no distribution."""
        distributions = self._proposal.distributions
        return distributions[place].probability(token) if place < len(distributions) else None
