"""A small model that guesses ahead, for all texts of a step in one call a position."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mxspec.runtime.drafters.drafter import ByText, Wanted
from mxspec.runtime.drafters.sureness import Sureness, peak_probability
from mxspec.runtime.events import Round
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import prepare
from mxspec.runtime.session import Part, Session
from mxspec.runtime.slots import Slot

Judged = tuple[Sureness, int]  # whose a level is, and the level


@dataclass(slots=True)
class _Guess:
    """How far a round has guessed for one text, and whether it is worth going on."""

    want: Wanted
    sureness: Sureness
    survives: float = 1.0  # the probability that all guesses so far are kept
    stopped: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether another call of the draft is worth its time."""
        if self.stopped or self.want.proposal.errors:
            return False
        if self.want.worth.all_wanted or not self.want.proposal.tokens:
            return True
        return self.survives * self.sureness.mean >= self.want.worth.call

    def pays(self, row: Logits) -> bool:
        """Whether the token that a row gives is worth being scored."""
        if self.want.worth.all_wanted:
            return True
        level = self.sureness.level(peak_probability(row))
        self.survives *= self.sureness.share(level)
        self.stopped = self.survives < self.want.worth.row
        if not self.stopped:
            self.want.memory.append((self.sureness, level))
        return not self.stopped


class ModelDrafter(ByText):
    """The draft model of a bundle, in the slots of its texts.

    What it has not read of a text is fed before its first guess: one token in most rounds, two where all was kept (its
    last own token, which it proposed but never read, and the target's).
    """

    name = "model"
    cheap = False

    def __init__(self, session: Session) -> None:
        self.session = session
        self._sureness = {greedy: Sureness() for greedy in (True, False)}

    def begin(self, tokens: Sequence[int], cache_key: str) -> list[Judged]:
        """The levels of a round's guesses."""
        return []

    def observe(self, memory: list[Judged], done: Round) -> None:
        for place, (sureness, level) in enumerate(memory):
            if place < done.evaluated:
                sureness.observe(level, kept=place < done.accepted)
        memory.clear()

    def limit(self, length: int) -> int:
        return max(self.session.capacity - length + 1, 0)

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        return len(tokens) - slot.draft_length

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        parts: list[Part] = []
        for tokens, slot, count in pieces:
            first = slot.draft_length
            parts.append(Part(slot.index, first, tokens[first : first + count], 0 if parts else 1))
            slot.draft_length += count
        if parts:
            self.session.run(parts)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        calls = []
        unread = {id(want): [*want.tokens[want.slot.draft_length :], *want.proposal.tokens] for want in wanted}
        guesses = {id(want): _Guess(want, self._sureness[want.choice.greedy_text]) for want in wanted}
        for position in range(max((want.k for want in wanted), default=0)):
            active = [want for want in wanted if want.k > position and guesses[id(want)].goes_on]
            if not active:
                break
            began = time.perf_counter()
            logits = self.session.run(
                [Part(want.slot.index, want.slot.draft_length, unread[id(want)], 1) for want in active]
            )
            prepare([(want.shaper, want.proposal.tokens) for want in active])
            for want, row in zip(active, logits, strict=True):
                want.slot.draft_length += len(unread[id(want)])
                if guesses[id(want)].pays(row):
                    want.add_row(row, self.name)
                    unread[id(want)] = want.proposal.tokens[-1:]
            calls.append((len(active), time.perf_counter() - began))
        return calls
