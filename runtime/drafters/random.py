"""Guesses at random: the theoretical case of Leviathan et al. (2023), section 3.6, and the least that can be kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.runtime.drafters.drafter import ByText, Wanted
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Purpose


class RandomDrafter(ByText):
    """Every token of the vocabulary is as likely as any other, also where the text is greedy."""

    name = "random"
    cheap = False  # it would find that nothing is worth it

    def __init__(self, vocab_size: int) -> None:
        self._any = Distribution.of(np.ones(vocab_size, np.float32))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            for _ in range(want.k):
                if want.choice.matched:
                    token = self._any.race(want.draws, len(want.proposal.tokens))
                else:
                    token = self._any.draw(want.draws.uniform(len(want.proposal.tokens), Purpose.DRAFT))
                if not want.add(token, self._any, self.name):
                    break
        return []
