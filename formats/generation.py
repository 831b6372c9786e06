"""What a checkpoint's generation settings say of single tokens, as a bundle holds it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mxspec.formats.validation import Strict

TokenId = Annotated[int, Field(ge=0)]


class GenerationRules(Strict):
    """Tokens that no answer has, and those that an answer at its limit ends with.

    `suppressed` are never written, `suppressed_first` are not the first written token, no sequence of `bad_words`, of
    one token or several, is written whole. An answer that reaches its limit ends with one of `forced_last`.
    `not_applied` are settings of the checkpoint that change texts, and that a request has to ask for.
    """

    suppressed: tuple[TokenId, ...] = ()
    suppressed_first: tuple[TokenId, ...] = ()
    bad_words: tuple[Annotated[tuple[TokenId, ...], Field(min_length=1)], ...] = ()
    forced_last: tuple[TokenId, ...] = ()
    not_applied: dict[str, Any] = Field(default_factory=dict)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids that are named."""
        words = (token for word in self.bad_words for token in word)
        return (*self.suppressed, *self.suppressed_first, *words, *self.forced_last)


NO_RULES = GenerationRules()
