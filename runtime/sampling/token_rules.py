"""The rules of a bundle about single tokens: what is never written, and what an answer at its limit ends with.

Each rule is that of transformers' generate (generation/logits_process.py): suppress_tokens, begin_suppress_tokens,
bad_words_ids, forced_eos_token_id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.formats.generation import GenerationRules
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.truncate import Indices


class TokenRules:
    """The rules at each position of one answer; `ahead` are the drafted tokens before it, taken as accepted."""

    def __init__(
        self, rules: GenerationRules, prompt: Sequence[int], *, vocab_size: int, limit: int | None = None
    ) -> None:
        """`limit`: tokens of the answer at most, where it has to end with one of `forced_last`."""
        self._suppressed = _within(rules.suppressed, vocab_size)
        self._first = _within(rules.suppressed_first, vocab_size)
        self._last = _within(rules.forced_last, vocab_size)
        self._limit = limit if len(self._last) else None
        endings: dict[tuple[int, ...], list[int]] = {}
        for *beginning, token in rules.bad_words:
            endings.setdefault(tuple(beginning), []).append(token)
        self._endings = {beginning: _within(tokens, vocab_size) for beginning, tokens in endings.items()}
        self._lengths = sorted({len(beginning) for beginning in endings})
        self._emitted = 0
        self._tail: tuple[int, ...] = ()  # as much of the text as the longest beginning
        self._add(prompt)

    @property
    def any(self) -> bool:
        """Whether a rule acts here or at a later position."""
        first = self._emitted == 0 and len(self._first) > 0
        return len(self._suppressed) > 0 or first or bool(self._lengths) or self._limit is not None

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens belong to the answer now."""
        self._emitted += len(tokens)
        self._add(tokens)

    def apply(self, row: Logits, ahead: Sequence[int]) -> None:
        """Write the rules into a row float32[vocab], in transformers' order."""
        row[self._completing(ahead)] = -np.inf
        if self._at_limit(ahead):
            row[:] = -np.inf
            row[self._last] = 0
        row[self._suppressed_at(ahead)] = -np.inf

    def allows(self, token: int, ahead: Sequence[int]) -> bool:
        """Whether the text can go on with this token."""
        possible = token in self._last if self._at_limit(ahead) else token not in self._completing(ahead)
        return possible and token not in self._suppressed_at(ahead)

    def leave_none_of(self, tokens: Indices, ahead: Sequence[int]) -> bool:
        """Whether the text can go on with no token of `tokens`."""
        return not any(self.allows(int(token), ahead) for token in tokens)

    def _at_limit(self, ahead: Sequence[int]) -> bool:
        """Whether the next token is the last one within the limit."""
        return self._emitted + len(ahead) + 1 == self._limit

    def _completing(self, ahead: Sequence[int]) -> Indices:
        """The tokens that would complete a bad word."""
        text = (*self._tail, *ahead)
        fitting = (text[len(text) - length :] for length in self._lengths if length <= len(text))
        return np.concatenate([_NONE, *(self._endings[end] for end in fitting if end in self._endings)])

    def _suppressed_at(self, ahead: Sequence[int]) -> Indices:
        """The tokens that are not written here."""
        first = self._emitted + len(ahead) == 0
        return np.concatenate([self._suppressed, self._first]) if first else self._suppressed

    def _add(self, tokens: Sequence[int]) -> None:
        if self._lengths and (longest := self._lengths[-1]):
            self._tail = (*self._tail, *tokens)[-longest:]


_NONE = np.array([], np.int64)


def _within(tokens: Sequence[int], vocab_size: int) -> Indices:
    return np.array([token for token in tokens if token < vocab_size], np.int64)
