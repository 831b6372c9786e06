"""The draft model of a bundle as drafters call it: what it reads of the texts in its slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mxspec.formats.errors import GenerationError
from mxspec.runtime.models.encoder import together_or_apart
from mxspec.runtime.models.part import Part, States
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.truncate import Indices

Unread = tuple[Slot, Sequence[int], int]
"""What the draft reads of a slot's text next: tokens, and after how many of the last of them logits are wanted."""


class Draft:
    """A draft model, in the slots of its texts. What it has read of a text is in its slot's `draft_length`."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def head_ids(self) -> Indices | None:
        """The token of each logit, if these are not all."""
        return self.session.head_ids

    def limit(self, length: int, source: int) -> int:
        """Number of tokens that can be proposed after `length` tokens, under a source of `source` tokens."""
        return max(self.session.capacity - length + 1, 0) if source <= self.session.source_capacity else 0

    def readable(self, tokens: Sequence[int], slot: Slot) -> int:
        """Number of tokens of a slot's text that can be read by now."""
        return len(tokens)

    def settle(self, slots: Sequence[Slot]) -> None:
        """A round has proposed all that it will for the texts in these slots."""

    def run(self, unread: Sequence[Unread]) -> Logits:
        """Read in one call; float32[sum of rows, tokens of the head], the session's own buffer."""
        parts = [Part(slot.index, slot.draft_length, tokens, rows) for slot, tokens, rows in unread]
        if not any(part.rows for part in parts):
            parts[0] = replace(parts[0], rows=1)  # a call has at least one row
        logits = self.session.run_head(parts)
        for slot, tokens, _ in unread:
            slot.draft_length += len(tokens)
        return logits

    def fits(self, slot: Slot, tokens: Sequence[int]) -> bool:
        """Whether the slot's cache holds these tokens after those that the draft has read."""
        return self.session.fits(slot.index, slot.draft_length, tokens)

    def can_read(self, slot: Slot, tokens: Sequence[int]) -> bool:
        """Whether the draft can read these tokens of the slot's text; nothing more is drafted after a text if not."""
        if not slot.undraftable and not self.fits(slot, tokens):
            slot.undraftable = True
        return not slot.undraftable

    def encode(self, slots: Sequence[Slot]) -> None:
        """Have the draft's encoder read those sources of these slots that it has not read.

        Nothing is drafted after a source that it cannot read; the texts of the others are what they are alone.
        """

        def encode(slots: Sequence[Slot]) -> None:
            self.session.encode([(slot.index, slot.source) for slot in slots])
            for slot in slots:
                slot.draft_encoded = True

        unread = [slot for slot in slots if slot.draft_unencoded]
        for slot, error in zip(unread, together_or_apart(encode, unread), strict=True):
            if isinstance(error, GenerationError):
                slot.undraftable = True
            elif error is not None:
                raise error


class StatesDraft(Draft):
    """A draft that reads the target's hidden states beside the tokens (EAGLE-3, Li et al. 2025).

    Beside token i + 1 it reads the state of token i: the target's, or where the target has not read token i yet, its
    own of the call before. So a text has an entry less in its cache than it has tokens. Entries with its own states are
    read again, with the target's, once the tokens are part of the text.
    """

    def __init__(self, session: Session, target: Session) -> None:
        super().__init__(session)
        self._target = target
        self._own: dict[int, States] = {}  # with which a slot's text goes on, of the last call

    def readable(self, tokens: Sequence[int], slot: Slot) -> int:
        return min(len(tokens), slot.target_length + 1)

    def run(self, unread: Sequence[Unread]) -> Logits:
        """Read what the target's states are known of in one call, and then a token of each text a call.

        Gives the logits after the last token of each text that wants them: float32[texts, tokens of the head].
        """
        parts, rests = [], []
        for slot, tokens, _ in unread:
            ready = max(slot.target_length + 1 - slot.draft_length, 0)
            parts.append(self._known(slot, tokens[:ready]))
            slot.draft_length += len(tokens[:ready])
            rests.append((slot, tokens[ready:]))
        last = self._call([part for part in parts if part.tokens])
        while rests := [(slot, tokens) for slot, tokens in rests if tokens]:
            last = {slot: row.copy() for slot, row in last.items()}  # the next call writes over the rows
            last |= self._call([self._guessed(slot, tokens[:1]) for slot, tokens in rests])
            for slot, _ in rests:
                slot.draft_length += 1
            rests = [(slot, tokens[1:]) for slot, tokens in rests]
        wanted = [last[slot.index] for slot, _, rows in unread if rows]
        return np.stack(wanted) if wanted else np.empty((0, 0), np.float32)

    def settle(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            slot.draft_length = min(slot.draft_length, slot.target_length + 1)

    def _known(self, slot: Slot, tokens: Sequence[int]) -> Part:
        """Tokens beside the target's states of those before them; a text's first token has none before it."""
        first = max(slot.draft_length - 1, 0)
        tokens = tokens if slot.draft_length else tokens[1:]
        assert self._target.given_states is not None
        return Part(slot.index, first, tokens, 1, self._target.given_states.of(slot.index, first, len(tokens)))

    def _guessed(self, slot: Slot, token: Sequence[int]) -> Part:
        """A token beside the draft's own state of the one before it."""
        return Part(slot.index, slot.draft_length - 1, token, 1, self._own[slot.index], own=True)

    def _call(self, parts: Sequence[Part]) -> dict[int, Logits]:
        """One call; the logits float32[tokens of the head] of each slot, in the session's own buffer."""
        if not parts:
            return {}
        logits = self.session.run_head(parts)
        assert self.session.read_states is not None
        for part, state in zip(parts, self.session.read_states.next.copy(), strict=True):
            self._own[part.slot] = state[None]
        return {part.slot: row for part, row in zip(parts, logits, strict=True)}
