"""No drafter: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.drafters.drafter import Proposal
from mxspec.runtime.sampling.settings import Sampling


class NoDrafter:
    """Plain decoding."""

    def limit(self, length: int) -> int:
        return 0

    def prefill(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], k: int, sampling: Sampling) -> Proposal:
        return Proposal()

    def rollback(self, length: int) -> None:
        pass
