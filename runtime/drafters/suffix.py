"""Suffix decoding: what followed the last tokens where they occurred before.

Oliaro et al. (2024), "SuffixDecoding: extreme speculative decoding for emerging AI applications",
https://arxiv.org/abs/2411.04975. Here an automaton takes the place of their tree, and the length of a guess follows
from what came true of such guesses in the text itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mxspec.runtime.drafters.drafter import Drafter, Wanted
from mxspec.runtime.drafters.suffixes.suffix_automaton import PastAnswers
from mxspec.runtime.drafters.suffixes.suffix_corpus import SuffixCorpus
from mxspec.runtime.drafters.suffixes.suffix_text import SuffixText
from mxspec.runtime.sampling.distribution import Distribution


class SuffixDrafter(Drafter):
    """Guesses from the text itself, its source, past answers of its cache key, or a corpus.

    Past answers are kept within `shared_bytes` bytes (0: no answers). They make proposals depend on other texts.
    """

    name = "suffix"

    def __init__(self, shared_bytes: int = 0, corpus: SuffixCorpus | None = None) -> None:
        self._past = PastAnswers(shared_bytes) if shared_bytes else None
        self._corpus = corpus
        self.repeatable = self._past is None

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> SuffixText:
        past = partial(self._past.of, cache_key) if self._past is not None else tuple
        return SuffixText(len(tokens), cache_key, past, self._corpus, source)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        for want in wanted:
            text: SuffixText = want.memory
            guess = text.guess(want.tokens, want.proposal.tokens, want.k)
            for token in guess.worthwhile(want.break_even):
                if not want.add(token, Distribution.point(token), self.name):
                    break
        return []

    def end(self, memory: SuffixText, tokens: Sequence[int]) -> None:
        if self._past is not None:
            self._past.add(tokens[memory.prompt_tokens :], memory.cache_key)
