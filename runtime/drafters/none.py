"""No drafter: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.slots import Slot


class NoDrafter:
    """Proposes nothing."""

    def limit(self, length: int) -> int:
        return 0

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        return 0

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        pass

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        return []
