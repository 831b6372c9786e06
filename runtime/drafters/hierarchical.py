"""A draft model that is itself sped up: what the text's own endings suggest is checked by it in one call.

The draft's token is a function of its distribution and of the place's random number (or the likeliest, or the winner
of the shared noise). A suggestion is kept where it is that token, with the draft's probability of it: as modified
rejection sampling would keep it, since a suggestion is a point. So what is proposed is what the draft model alone
proposes, bit for bit, in fewer calls, and both levels are lossless.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.stopping import Judged, Stopping
from mxspec.runtime.drafters.suffixes.suffix_text import SuffixText
from mxspec.runtime.events import Round
from mxspec.runtime.policy.break_even import BreakEven, break_even_of_row
from mxspec.runtime.policy.costs import Costs
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import prepare
from mxspec.runtime.sampling.truncate import Indices


class HierarchicalDrafter(ModelDrafter):
    """The draft model of a bundle, sped up by suffix decoding; it stops where the model alone would."""

    name = "hierarchical"

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._costs = Costs()

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> _Memory:
        return _Memory(SuffixText(len(tokens), source=source))

    def observe(self, memory: _Memory, done: Round) -> None:
        super().observe(memory.judged, done)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        self.draft.encode([want.slot for want in wanted])
        wanted = [want for want in wanted if self.draft.can_read(want.slot, want.tokens[want.slot.draft_length :])]
        began = time.perf_counter()
        drafts = [
            _Draft(want, len(want.proposal.tokens) + want.k, self.stopping(want, want.memory.judged)) for want in wanted
        ]
        while active := [draft for draft in drafts if draft.goes_on and self.draft.fits(draft.want.slot, draft.unread)]:
            break_even = BreakEven(row=break_even_of_row(self._costs, len(active)))
            guesses = [draft.guess(break_even) for draft in active]
            pairs = zip(active, guesses, strict=True)
            self._step(active, [guess if self._holds(draft, guess) else [] for draft, guess in pairs])
        places = max((draft.places for draft in drafts), default=0)
        return [(len(wanted), (time.perf_counter() - began) / max(places, 1))] * places

    def _holds(self, draft: _Draft, guess: Sequence[int] = ()) -> bool:
        """Whether the draft's cache holds what it has not read, and the guess."""
        return self.draft.fits(draft.want.slot, [*draft.unread, *guess])

    def _step(self, active: Sequence[_Draft], guesses: Sequence[list[int]]) -> None:
        """One call of the draft, and what it proposes along the guesses."""
        began = time.perf_counter()
        unread = [
            (draft.want.slot, draft.unread + guess, len(guess) + 1)
            for draft, guess in zip(active, guesses, strict=True)
        ]
        rows = self.draft.run(unread)
        self._costs.add(sum(wanted for _, _, wanted in unread), time.perf_counter() - began)
        prepare([(draft.want.shaper, draft.want.proposal.tokens) for draft in active])
        first = 0
        for draft, guess in zip(active, guesses, strict=True):
            draft.want.slot.draft_length -= len(guess)
            draft.follow(rows[first : first + len(guess) + 1], guess, self.draft.head_ids)
            first += len(guess) + 1


@dataclass(slots=True)
class _Memory:
    """What the drafter remembers of a text, and the levels of a round's guesses."""

    text: SuffixText
    judged: list[Judged] = field(default_factory=list)


@dataclass(slots=True)
class _Draft:
    """A text in a round: where its proposal ends at the latest, and whether it ends before."""

    want: Wanted
    end: int
    stopping: Stopping
    places: int = 0  # number of places at which the draft was asked

    @property
    def goes_on(self) -> bool:
        """Whether another token is to be drafted."""
        return len(self.want.proposal.tokens) < self.end and self.stopping.goes_on

    @property
    def unread(self) -> list[int]:
        """The tokens of the text and of the proposal that the draft has not read."""
        read = self.want.slot.draft_length
        beyond = max(read - len(self.want.tokens), 0)  # tokens of the proposal that it has read
        return [*self.want.tokens[read:], *self.want.proposal.tokens[beyond:]]

    def guess(self, break_even: BreakEven) -> list[int]:
        """The draft's likely tokens, except for the last one, which no call needs to read."""
        ahead = self.want.proposal.tokens
        most = self.end - len(ahead) - 1
        return self.want.memory.text.guess(self.want.tokens, ahead, most).worthwhile(break_even) if most > 0 else []

    def follow(self, rows: Logits, guess: Sequence[int], ids: Indices | None) -> None:
        """Propose the draft's tokens as long as they are those that it has read.

        Whether to stop is asked before every place, as if each took a call: if only calls were counted, a guess that
        is the token drawn would decide what is drafted.
        """
        tokens = self.want.proposal.tokens
        for place, row in enumerate(rows):
            if not self.goes_on:
                break
            self.places += 1
            if not self.stopping.add_row(row, HierarchicalDrafter.name, ids):
                break
            if self.want.proposal.errors or place == len(guess) or tokens[-1] != guess[place]:
                break
            self.want.slot.draft_length += 1
