"""Guesses at random: the theoretical case of Leviathan et al. (2023), section 3.6, with the least acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.runtime.drafters.drafter import ByText, Wanted
from mxspec.runtime.sampling.distribution import Distribution


class RandomDrafter(ByText):
    """Every token of the vocabulary is as likely as any other, also where the text is greedy."""

    name = "random"
    cheap = False  # by cost it would propose nothing

    def __init__(self, vocab_size: int) -> None:
        self._any = Distribution.of(np.ones(vocab_size, np.float32))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            for _ in range(want.k):
                token = want.choice.draw(self._any, want.draws, len(want.proposal.tokens))
                if not want.add(token, self._any, self.name):
                    break
        return []
