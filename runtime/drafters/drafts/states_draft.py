"""A draft model that reads the target's hidden states beside the tokens (EAGLE-3, Li et al. 2025).

Beside token i + 1 it reads the state of token i: the target's, or where the target has not read token i yet, its own
of the call before. So a text has an entry less in its cache than it has tokens. Entries with its own states are read
again, with the target's, once the tokens are part of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.runtime.drafters.drafts.draft import Draft, Unread
from mxspec.runtime.models.part import Part, States
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.shape import Logits


class StatesDraft(Draft):
    """The draft, beside the target that keeps its states slot by slot."""

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
