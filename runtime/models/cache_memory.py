"""The memory that the key-value caches of an engine's slots take, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxspec.runtime.models.session import Session


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """The caches of the same slots in several models; `limit` is the most bytes that all slots may take, if any."""

    sessions: Sequence[Session]
    limit: int | None = None

    def bytes_of(self, tokens: int, source: int = 0) -> int:
        """Bytes of one slot that holds so many tokens, and of what encoders make of a source; whole pages."""
        return sum(session.slot_bytes(tokens, source) for session in self.sessions)

    def goes_on(self, model: int, slot: int, length: int) -> bool:
        """Whether a text can go on after its first `length` tokens in a slot of a model, which has read them.

        Models are numbered as `sessions`; one that is not there has nothing to go on with, and loses nothing.
        """
        return model >= len(self.sessions) or self.sessions[model].goes_on(slot, length)

    def release(self, slot: int, first: int = 0) -> None:
        """Give a slot's memory from token number `first` on back to the system."""
        for session in self.sessions:
            session.release(slot, first)

    def release_source(self, slot: int) -> None:
        """Give back what encoders have made of a slot's source."""
        for session in self.sessions:
            if session.encoder is not None:
                session.release_source(slot)
