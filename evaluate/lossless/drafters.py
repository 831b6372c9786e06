"""Drafters of the checks: one that guesses at random, and one that knows the texts and makes some errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.runtime.drafters.drafter import Drafter, Wanted
from mxspec.runtime.sampling.distribution import Distribution

_ERRS = (3, 11, 12, 20)  # of every 23 positions, those with a wrong guess


class RandomDrafter(Drafter):
    """Every token of the vocabulary is as likely as any other, also where the text is greedy.

    The case with the least acceptance in theory (Leviathan et al. 2023, section 3.6): nearly every token is rejected.
    """

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


class RehearsedDrafter(Drafter):
    """Guesses the texts that it was given, so that every number of accepted tokens occurs with any draft."""

    name = "rehearsed"
    cheap = False  # it only drafts with a fixed K

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int) -> None:
        self._texts = [(list(text), _with_errors(text, vocab_size)) for text in texts]  # prompts and answers

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            for _ in range(want.k):
                token = self._next([*want.tokens, *want.proposal.tokens])
                if token is None or not want.add(token, Distribution.point(token), self.name):
                    break
        return []

    def _next(self, tokens: list[int]) -> int | None:
        """The next token of one of the texts; after a wrong guess, any that it knows at this position."""
        count = len(tokens)
        for text, wrong in self._texts:
            places = zip(tokens, text, wrong, strict=False)
            if len(text) > count and all(token in known for token, *known in places):
                return wrong[count]
        return None


def _with_errors(text: Sequence[int], vocab_size: int) -> list[int]:
    return [(token + 1) % vocab_size if i % 23 in _ERRS else token for i, token in enumerate(text)]
