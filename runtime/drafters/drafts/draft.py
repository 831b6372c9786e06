"""The draft model of a bundle as drafters call it: what it reads of the texts in its slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mxspec.formats.errors import GenerationError
from mxspec.runtime.models.encoder import together_or_apart
from mxspec.runtime.models.part import Part
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
