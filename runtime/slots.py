"""The rows of the caches: which text each holds, and where a new one may go on from what another has read.

A slot whose text has ended keeps its content until the slot is needed. A new prompt continues from the longest
beginning that it shares with any slot, of a text that runs or has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """One row of the caches of both models.

    Its first `target_length` and `draft_length` entries are those of `tokens`; the draft's may be fewer, for it reads
    only what it drafts after.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    target_length: int = 0
    draft_length: int = 0
    cache_key: str = ""
    running: bool = False
    last_used: int = 0  # counts the takings; 0: never

    def rollback(self, length: int) -> None:
        """Both models forget what they read after the first `length` tokens."""
        self.target_length = min(self.target_length, length)
        self.draft_length = min(self.draft_length, length)


@dataclass(frozen=True, slots=True)
class Taken:
    """A slot for a new text, and whose beginning it gets: `target` and `draft` tokens of `lender`."""

    slot: Slot
    lender: Slot
    target: int
    draft: int


class Slots:
    """All slots of an engine."""

    def __init__(self, count: int) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._takings = 0

    def take(self, prompt: Sequence[int], cache_key: str) -> Taken | None:
        """A slot for a text that begins with `prompt`, or None where all are running.

        The last token of the prompt is never taken over: reading it gives the first logits. A slot that holds nothing
        but the shared beginning is continued where it is; out of one that holds more, the beginning is copied to the
        slot that was not used for longest, so that nothing is lost that another text may want.
        """
        idle = [slot for slot in self._slots if not slot.running]
        if not idle:
            return None
        shared = {slot.index: self._shared(slot, prompt, cache_key) for slot in self._slots}
        lender = max(self._slots, key=lambda slot: (shared[slot.index], not slot.running, slot.last_used))
        length = shared[lender.index]
        oldest = min(idle, key=lambda slot: slot.last_used)
        slot = lender if not lender.running and length and length == lender.target_length else oldest
        taken = Taken(slot, lender, length, min(length, lender.draft_length))
        self._takings += 1
        slot.running, slot.last_used, slot.cache_key = True, self._takings, cache_key
        slot.target_length, slot.draft_length = taken.target, taken.draft
        slot.tokens = list(prompt)
        return taken

    def free(self, slot: Slot) -> None:
        """The text has ended; what was read of it stays, for those that begin alike."""
        self._takings += 1
        slot.running, slot.last_used = False, self._takings

    def forget(self, slot: Slot) -> None:
        """Nothing that the slot holds may be used again: a call that wrote to it failed."""
        slot.tokens, slot.target_length, slot.draft_length = [], 0, 0

    def _shared(self, slot: Slot, prompt: Sequence[int], cache_key: str) -> int:
        if slot.cache_key != cache_key:
            return 0
        return common_prefix(slot.tokens[: slot.target_length], prompt[:-1])


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
