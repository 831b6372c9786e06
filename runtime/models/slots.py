"""The rows of the caches: which text each holds, and where a new text may go on from what another has read.

A slot whose text has ended keeps its content until the slot is needed. A new prompt continues from the longest
beginning that it shares with any slot, whether that slot's text runs or has ended. Where an encoder reads a source
first, texts share a beginning only under the same source, and what an encoder made of it serves all texts that have it.
Layers with a window keep the latest tokens only: a slot whose text went on past a beginning serves it as long as what
the windows see at its end is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.models.session import Session

Ids = NDArray[np.int64]
_TARGET, _DRAFT = 0, 1  # in the order of the sessions


def _no_ids() -> Ids:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class Slot:
    """One row of the caches of both models.

    Its first `target_length` and `draft_length` entries are those of `tokens`; the draft's may be fewer, for it reads
    only what it drafts after. `source` is what encoders read for it, and which of the models has; `undraftable`: the
    draft's cannot, for its caches do not hold the values.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    target_length: int = 0
    draft_length: int = 0
    source: tuple[int, ...] = ()
    target_encoded: bool = False
    draft_encoded: bool = False
    undraftable: bool = False
    cache_key: str = ""
    running: bool = False
    last_used: int = 0  # the number of the last taking; 0: never used
    borrower: object | None = None  # a running text that uses the slot while it is idle
    reserved: int = 0  # most tokens that the running text will have
    reread: int = 0  # tokens that were read for another text, and are read again: windows have passed them
    _ids: Ids = field(default_factory=_no_ids, compare=False)  # the first of `_ids_of`, a list that only grows
    _ids_of: list[int] | None = field(default=None, compare=False)

    def read_ids(self) -> Ids:
        """The tokens that the target has read, as an array that is kept: new prompts are compared with it."""
        if self._ids_of is not self.tokens:
            self._ids, self._ids_of = _no_ids(), self.tokens
        if new := self.tokens[len(self._ids) : self.target_length]:
            self._ids = np.concatenate([self._ids, np.array(new, np.int64)])
        return self._ids[: self.target_length]

    def rollback(self, length: int) -> None:
        """Both models forget what they read after the first `length` tokens."""
        self.target_length = min(self.target_length, length)
        self.draft_length = min(self.draft_length, length)

    @property
    def target_unencoded(self) -> int:
        """Tokens of the source that the target's encoder has to read."""
        return 0 if self.target_encoded else len(self.source)

    def draft_lag(self, length: int) -> int:
        """Tokens that the draft has to read of the source, and of a text up to `length`."""
        return self.draft_unencoded + length - self.draft_length

    @property
    def draft_unencoded(self) -> int:
        """Tokens of the source that the draft's encoder has to read."""
        return 0 if self.draft_encoded else len(self.source)


class Slots:
    """All slots of an engine, and the memory that their caches take in all its models: at most `limit` bytes, if any.

    `sessions` are the target's and, if there is one, the draft's.
    """

    def __init__(self, count: int, sessions: Sequence[Session] = (), limit: int | None = None) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._sessions = sessions
        self.limit = limit
        self._takings = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes that the slots' caches take."""
        return sum(self._held_by(slot) for slot in self._slots)

    def take(
        self, prompt: Sequence[int], cache_key: str, source: tuple[int, ...] = (), count: int = 1, most: int = 0
    ) -> list[Slot] | None:
        """`count` slots for a text that begins with `prompt` under `source`, or None where fewer are idle.

        Also None where the text, which may have `most` tokens, does not fit beside running ones into the caches' memory
        limit. Slots that were not used for longest lose their content for it.

        The first is where the prompt is read; the others are those not used for longest, and get nothing.
        The last token of the prompt is never taken over: reading it gives the first logits. A slot that holds nothing
        but the shared beginning is continued where it is; out of one that holds more, the beginning is copied to the
        slot that was not used for longest, so that nothing is lost that another text may want. A slot of the same
        source is continued whatever it holds beyond: that was an answer, which takes less memory than a source.
        """
        idle = [slot for slot in self._slots if not slot.running]
        if len(idle) < count:
            return None
        wanted = np.array(prompt[:-1], np.int64)
        read = {slot.index: _shared(slot, wanted, cache_key, source) for slot in self._slots}
        shared = {index: length if self._goes_on(_TARGET, index, length) else 0 for index, length in read.items()}
        lender = max(self._slots, key=lambda slot: (shared[slot.index], not slot.running, slot.last_used))
        length = shared[lender.index]
        alike = [slot for slot in self._slots if source and (slot.cache_key, slot.source) == (cache_key, source)]
        if not lender.running and length and length == lender.target_length:
            slot = lender
        elif own := [slot for slot in alike if slot.target_encoded and not slot.running]:
            slot = max(own, key=lambda slot: (shared[slot.index], slot.last_used))
        else:
            slot = min(idle, key=lambda slot: slot.last_used)
        if length and not lender.running and not self._fits(most, count, source, beside=lender):
            slot = lender
        if not self._fits(most, count, source):
            return None
        lengths, reread = (length, self.draft_length(lender, length)), max(read.values()) - length
        encoded = [other for other in alike if other.target_encoded], [other for other in alike if other.draft_encoded]
        sources = [slot if slot in held else next(iter(held), None) for held in encoded]
        others = sorted((other for other in idle if other is not slot), key=lambda other: other.last_used)
        taken = [slot, *others[: count - 1]]
        self._make_room(taken, lender, most, source)
        for one in taken:  # the first copies its prefix before the slot that holds it is reused
            self._takings += 1
            one.tokens, one.cache_key, one.source = list(prompt), cache_key, source
            one.running, one.last_used, one.borrower = True, self._takings, None
            one.reserved, one.reread, one.undraftable = most, reread, False
            one.target_length, one.draft_length = lengths
            one.target_encoded, one.draft_encoded = (held is not None for held in sources)
            for session, held_length, held_source in zip(self._sessions, lengths, sources, strict=False):
                self._hand_over(session, one, lender, held_length, held_source)
            lengths, sources, reread = (0, 0), [None, None], 0  # the others begin with nothing
        return taken

    def _hand_over(self, session: Session, slot: Slot, lender: Slot, length: int, source: Slot | None) -> None:
        """Copy the prefix and the source from other slots, or free the memory of the slot's older text."""
        if source is not None and source is not slot:
            session.copy_source(source.index, slot.index)
        elif source is None and slot.source:
            session.release_source(slot.index)
        if length == 0:
            session.release(slot.index)
            return
        if self.limit is not None:
            session.release(slot.index, length if lender is slot else 0)
        if lender is not slot:
            session.copy_prefix(lender.index, slot.index, length)

    def draft_length(self, slot: Slot, length: int) -> int:
        """Of the first `length` tokens of a slot's text, those that the draft has read and can go on after."""
        read = min(slot.draft_length, length)
        return read if self._can_keep(_DRAFT, slot.index, read) else 0

    def _can_keep(self, model: int, slot: int, length: int) -> bool:
        """Whether a text goes on after its first `length` tokens, and after all but the last of them."""
        return all(self._goes_on(model, slot, known) for known in (max(length - 1, 0), length))

    def _goes_on(self, model: int, slot: int, length: int) -> bool:
        """Whether a model that has read a slot's text can go on after `length` tokens; one that is not there can."""
        return model >= len(self._sessions) or self._sessions[model].goes_on(slot, length)

    def bytes_of(self, tokens: int, source: Sequence[int] = ()) -> int:
        """Bytes of one slot that holds so many tokens, and of what encoders make of a source; whole pages."""
        return sum(session.slot_bytes(tokens, len(source)) for session in self._sessions)

    def _held_by(self, slot: Slot) -> int:
        return self.bytes_of(slot.target_length, slot.source)

    def _reserved(self) -> int:
        return sum(self.bytes_of(slot.reserved, slot.source) for slot in self._slots if slot.running)

    def _fits(self, most: int, count: int, source: tuple[int, ...], beside: Slot | None = None) -> bool:
        """Whether a text fits into the limit beside those that run, and beside the content of one idle slot."""
        if self.limit is None:
            return True
        kept = 0 if beside is None else self._held_by(beside)
        return self._reserved() + count * self.bytes_of(most, source) + kept <= self.limit

    def _make_room(self, taken: Sequence[Slot], lender: Slot, most: int, source: tuple[int, ...]) -> None:
        """Drop the content of idle slots, those not used for longest first, until a new text fits; the lender last."""
        if self.limit is None:
            return
        chosen = {slot.index for slot in taken}
        idle = [slot for slot in self._slots if not slot.running and slot.index not in chosen and self._held_by(slot)]
        idle.sort(key=lambda slot: (slot is lender, slot.last_used))
        left = self.limit - self._reserved() - len(taken) * self.bytes_of(most, source)
        held = sum(map(self._held_by, idle))
        for slot in idle:
            if held <= left:
                return
            held -= self._held_by(slot)
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        """Forget what a slot holds, and give its memory back."""
        self.forget(slot)
        self.release(slot)
        for session in self._sessions:
            if session.encoder is not None:
                session.release_source(slot.index)

    def release(self, slot: Slot) -> None:
        """Give the memory of a slot's tokens back to the system."""
        for session in self._sessions:
            session.release(slot.index)

    def borrow(self, count: int, borrower: object) -> list[Slot]:
        """Up to `count` idle slots for a text that runs, until another text is given them.

        The borrower's own go first, then those not used for longest, whose content is lost. A slot's `borrower` says
        whose it is by now.
        """
        slots = sorted(self._free_for(borrower), key=lambda slot: (slot.borrower is not borrower, slot.last_used))
        for slot in slots[:count]:
            if slot.borrower is not borrower:
                self.forget(slot)
                slot.borrower = borrower
        return slots[:count]

    def spare(self, borrower: object) -> int:
        """Number of slots that `borrower` could borrow, or has borrowed."""
        return len(self._free_for(borrower))

    def _free_for(self, borrower: object) -> list[Slot]:
        if self.limit is not None:
            return []  # what a text borrows would not be counted
        return [slot for slot in self._slots if not slot.running and slot.borrower in (None, borrower)]

    def holding(self, tokens: Sequence[int], cache_key: str) -> Slot | None:
        """A slot that can go on after these tokens, and all but the last of them, for texts with this key."""
        wanted, length = np.array(tokens, np.int64), len(tokens)
        held = (slot for slot in self._slots if _shared(slot, wanted, cache_key, ()) == length)
        return next((slot for slot in held if self._can_keep(_TARGET, slot.index, length)), None)

    def drop_idle(self) -> None:
        """Forget what slots without a text hold, and give their memory back."""
        for slot in self._slots:
            if not slot.running and slot.borrower is None:
                self._drop(slot)

    def contents(self) -> list[tuple[list[int], str]]:
        """The tokens that each slot holds, and the cache key that they are for; what was used last comes first."""
        used = sorted((slot for slot in self._slots if slot.target_length), key=lambda slot: -slot.last_used)
        return [(slot.tokens[: slot.target_length], slot.cache_key) for slot in used]

    def free(self, slot: Slot) -> None:
        """The slot's text has ended; what was read of it stays, for texts that begin alike."""
        self._takings += 1
        slot.running, slot.last_used = False, self._takings

    def forget(self, slot: Slot) -> None:
        """Nothing that the slot holds may be used again: a call that wrote to it failed."""
        slot.tokens, slot.target_length, slot.draft_length = [], 0, 0
        slot.source, slot.target_encoded, slot.draft_encoded = (), False, False


def _shared(slot: Slot, wanted: Ids, cache_key: str, source: tuple[int, ...]) -> int:
    """Number of tokens that what the slot holds and `wanted` begin with, where the slot may serve the text."""
    if not slot.target_length or slot.cache_key != cache_key or slot.source != source:
        return 0
    return common_prefix(slot.read_ids(), wanted)


def common_prefix(first: Sequence[int] | Ids, second: Sequence[int] | Ids) -> int:
    """Number of tokens that both begin with."""
    length = min(len(first), len(second))
    if not length:
        return 0
    differs = np.asarray(first[:length]) != np.asarray(second[:length])
    place = int(differs.argmax())
    return place if differs[place] else length
