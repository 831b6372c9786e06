"""A small model that guesses ahead, for all texts of a step in one call a position."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mxspec.runtime.drafters.draft import Draft, Unread
from mxspec.runtime.drafters.drafter import Drafter, Wanted
from mxspec.runtime.drafters.stopping import Judged, Stopping, learn, shares_by_level
from mxspec.runtime.events import Round
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.shaper import prepare


class ModelDrafter(Drafter):
    """The draft model of a bundle, in the slots of its texts.

    What it has not read of a text is fed before its first guess: one token in most rounds, two where all was kept (its
    last own token, which it proposed but never read, and the target's). Where it has an encoder, that reads a source
    when the text is first drafted after.
    """

    name = "model"
    cheap = False

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._kept = {greedy: shares_by_level() for greedy in (True, False)}

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> Any:
        levels: list[Judged] = []  # of a round's guesses
        return levels

    def observe(self, memory: Any, done: Round) -> None:
        learn(memory, done)

    def stopping(self, want: Wanted, judged: list[Judged]) -> Stopping:
        """The rule that decides in a round how far to guess for a text."""
        return Stopping(want, self._kept[want.choice.greedy_text], judged)

    def limit(self, length: int, source: int = 0) -> int:
        return self.draft.limit(length, source)

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        return slot.draft_lag(self.draft.readable(tokens, slot))

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        unread: list[Unread] = []
        of_texts = [count - slot.draft_unencoded for _, slot, count in pieces]
        self.draft.encode([slot for _, slot, _ in pieces])
        for (tokens, slot, _), count in zip(pieces, of_texts, strict=True):
            end = min(slot.draft_length + max(count, 0), self.draft.readable(tokens, slot))
            piece = tokens[slot.draft_length : end]
            if piece and self.draft.can_read(slot, piece):
                unread.append((slot, piece, 0))
        if unread:
            self.draft.run(unread)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        calls, draft = [], self.draft
        draft.encode([want.slot for want in wanted])
        wanted = [want for want in wanted if draft.can_read(want.slot, want.tokens[want.slot.draft_length :])]
        unread = {id(want): [*want.tokens[want.slot.draft_length :], *want.proposal.tokens] for want in wanted}
        guesses = {id(want): self.stopping(want, want.memory) for want in wanted}
        for position in range(max((want.k for want in wanted), default=0)):
            active = [want for want in wanted if want.k > position and guesses[id(want)].goes_on]
            active = [want for want in active if draft.fits(want.slot, unread[id(want)])]
            if not active:
                break
            began = time.perf_counter()
            logits = draft.run([(want.slot, unread[id(want)], 1) for want in active])
            prepare([(want.shaper, want.proposal.tokens) for want in active])
            for want, row in zip(active, logits, strict=True):
                if guesses[id(want)].add_row(row, self.name, draft.head_ids):
                    unread[id(want)] = want.proposal.tokens[-1:]
            calls.append((len(active), time.perf_counter() - began))
        draft.settle([want.slot for want in wanted])
        return calls
