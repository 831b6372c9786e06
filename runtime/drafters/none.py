"""No drafter: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.drafters.drafter import ByText, Wanted


class NoDrafter(ByText):
    """Proposes nothing."""

    name = "none"

    def limit(self, length: int, source: int = 0) -> int:
        return 0

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        return []
