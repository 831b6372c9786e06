"""What suffix decoding remembers of a text: where its endings occurred before, in itself, its source and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mxspec.runtime.drafters.guess import Guess, kind_of_match, shares_by_match
from mxspec.runtime.drafters.suffixes.suffix_automaton import BREAK, Match, SuffixAutomaton
from mxspec.runtime.drafters.suffixes.suffix_corpus import SuffixCorpus
from mxspec.runtime.policy.shares import Shares

LOOK_BACK = 64  # tokens of a text that are looked for in others
ENOUGH = 4  # matched tokens of the text itself from which the corpus is not searched


class Elsewhere:
    """A text read beside an automaton of other texts, which may have grown since."""

    def __init__(self, automaton: SuffixAutomaton, before: Sequence[int]) -> None:
        self.automaton = automaton
        self._match = Match()
        self.extend(before)

    def extend(self, tokens: Sequence[int]) -> None:
        """Follow the text as it grows."""
        for token in tokens:
            self.automaton.advance(self._match, token)

    def guess(self, ahead: Sequence[int], most: int, kept: Shares) -> Guess:
        """What followed the longest match in the other texts."""
        match = Match(self._match.state, self._match.length)
        for token in ahead:
            self.automaton.advance(match, token)
        return Guess(self.automaton.continuation(match, ahead, most), match.length, kept)


class SuffixText:
    """A text's own automaton, its places in those of past answers, and what came true of its guesses.

    A source, which an encoder reads, counts as text before the answer: answers copy much of it.
    """

    def __init__(
        self,
        prompt_tokens: int,
        cache_key: str = "",
        past: Callable[[], Sequence[SuffixAutomaton]] = tuple,
        corpus: SuffixCorpus | None = None,
        source: Sequence[int] = (),
    ) -> None:
        self.prompt_tokens, self.cache_key = prompt_tokens, cache_key
        self._before = (*source, BREAK) if source else ()
        self._own = SuffixAutomaton()
        self._kept = shares_by_match()
        self._past, self._past_kept = past, shares_by_match()
        self._elsewhere: list[Elsewhere] = []
        self._corpus, self._corpus_kept = corpus, shares_by_match()
        self._open: list[Guess] = []  # from elsewhere, not yet compared with what was written

    def guess(self, tokens: Sequence[int], ahead: Sequence[int], most: int) -> Guess:
        """What followed the longest ending of the text and `ahead`; the text's own before that of others."""
        self._catch_up(tokens)
        best = self._of_itself(ahead, most)
        self._open = [place.guess(ahead, most, self._past_kept) for place in self._elsewhere]
        if self._corpus is not None and best.matched < ENOUGH:
            self._open.append(self._of_corpus(tokens, ahead, most))
        best = max([best, *self._open], key=lambda guess: guess.matched if guess.tokens else 0)
        if ahead:
            self._open = []  # it is not known whether they come true
        return best

    def _of_itself(self, ahead: Sequence[int], most: int) -> Guess:
        match = self._own.repeated
        for token in ahead:
            self._own.advance(match, token)
        return Guess(self._own.continuation(match, ahead, most), match.length, self._kept)

    def _of_corpus(self, tokens: Sequence[int], ahead: Sequence[int], most: int) -> Guess:
        assert self._corpus is not None
        matched, found = self._corpus.continuation([*tokens[-LOOK_BACK:], *ahead], most)
        return Guess(found, matched, self._corpus_kept)

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Read what was written since, and learn from it."""
        own = self._own
        if self._before and not own.tokens:
            self._learn(self._before)
        written = tokens[len(own.tokens) - len(self._before) :]
        for guess in self._open:
            guess.compare(written)
        self._learn(written)
        known = {id(place.automaton): place for place in self._elsewhere}
        for place in self._elsewhere:
            place.extend(written)
        self._elsewhere = [
            known.get(id(automaton)) or Elsewhere(automaton, tokens[-LOOK_BACK:]) for automaton in self._past()
        ]

    def _learn(self, tokens: Sequence[int]) -> None:
        """Learn, as the text grows, which of the tokens that followed its endings before came true."""
        for token in tokens:
            matched, guessed = self._own.predict()
            if matched and token != BREAK:
                self._kept.observe(kind_of_match(matched), guessed == token)
            self._own.append(token)
