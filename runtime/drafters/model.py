"""A small model that guesses ahead, for all texts of a step in one call a position."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mxspec.formats.errors import GenerationError
from mxspec.runtime.drafters.drafter import ByText, Wanted
from mxspec.runtime.drafters.stopping import Judged, Stopping, learn
from mxspec.runtime.drafters.sureness import Sureness
from mxspec.runtime.events import Round
from mxspec.runtime.models.encoder import together_or_apart
from mxspec.runtime.models.session import Part, Session
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.shaper import prepare


class ModelDrafter(ByText):
    """The draft model of a bundle, in the slots of its texts.

    What it has not read of a text is fed before its first guess: one token in most rounds, two where all was kept (its
    last own token, which it proposed but never read, and the target's). Where it has an encoder, that reads a source
    when the text is first drafted after.
    """

    name = "model"
    cheap = False

    def __init__(self, session: Session) -> None:
        self.session = session
        self._sureness = {greedy: Sureness() for greedy in (True, False)}

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> list[Judged]:
        """The levels of a round's guesses."""
        return []

    def observe(self, memory: list[Judged], done: Round) -> None:
        learn(memory, done)

    def stopping(self, want: Wanted, judged: list[Judged]) -> Stopping:
        """The rule that decides in a round how far to guess for a text."""
        return Stopping(want, self._sureness[want.choice.greedy_text], judged)

    def limit(self, length: int, source: int = 0) -> int:
        return max(self.session.capacity - length + 1, 0) if source <= self.session.source_capacity else 0

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        return slot.draft_lag(len(tokens))

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        parts: list[Part] = []
        of_texts = [count - slot.draft_unencoded for _, slot, count in pieces]
        encode_sources(self.session, [slot for _, slot, _ in pieces])
        for (tokens, slot, _), count in zip(pieces, of_texts, strict=True):
            first = slot.draft_length
            piece = tokens[first : first + count]
            if count > 0 and can_read(self.session, slot, piece):
                parts.append(Part(slot.index, first, piece, 0 if parts else 1))
                slot.draft_length += count
        if parts:
            self.session.run_head(parts)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        calls = []
        encode_sources(self.session, [want.slot for want in wanted])
        wanted = [want for want in wanted if can_read(self.session, want.slot, want.tokens[want.slot.draft_length :])]
        unread = {id(want): [*want.tokens[want.slot.draft_length :], *want.proposal.tokens] for want in wanted}
        guesses = {id(want): self.stopping(want, want.memory) for want in wanted}
        for position in range(max((want.k for want in wanted), default=0)):
            active = [want for want in wanted if want.k > position and guesses[id(want)].goes_on]
            active = [want for want in active if fits(self.session, want.slot, unread[id(want)])]
            if not active:
                break
            began = time.perf_counter()
            logits = self.session.run_head(
                [Part(want.slot.index, want.slot.draft_length, unread[id(want)], 1) for want in active]
            )
            prepare([(want.shaper, want.proposal.tokens) for want in active])
            for want, row in zip(active, logits, strict=True):
                want.slot.draft_length += len(unread[id(want)])
                if guesses[id(want)].add_row(row, self.name, self.session.head_ids):
                    unread[id(want)] = want.proposal.tokens[-1:]
            calls.append((len(active), time.perf_counter() - began))
        return calls


def fits(session: Session, slot: Slot, unread: Sequence[int]) -> bool:
    """Whether the slot's cache holds these tokens after those that the draft has read."""
    return session.fits(slot.index, slot.draft_length, unread)


def can_read(session: Session, slot: Slot, unread: Sequence[int]) -> bool:
    """Whether the draft can read these tokens of the slot's text; nothing more is drafted after a text if not."""
    if not slot.undraftable and not fits(session, slot, unread):
        slot.undraftable = True
    return not slot.undraftable


def encode_sources(session: Session, slots: Sequence[Slot]) -> None:
    """Have the draft's encoder read those sources of these slots that it has not read.

    Nothing is drafted after a source that it cannot read; the texts of the others are what they are alone.
    """

    def encode(slots: Sequence[Slot]) -> None:
        session.encode([(slot.index, slot.source) for slot in slots])
        for slot in slots:
            slot.draft_encoded = True

    unread = [slot for slot in slots if slot.draft_unencoded]
    for slot, error in zip(unread, together_or_apart(encode, unread), strict=True):
        if isinstance(error, GenerationError):
            slot.undraftable = True
        elif error is not None:
            raise error
