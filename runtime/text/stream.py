"""Token ids to text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from tokenizers import Tokenizer

from mxspec.runtime.text.detokenize import detokenizer
from mxspec.runtime.text.stop import StopSearch


class TextStream:
    """Turns the tokens after a prompt into text as they come, up to the first of the stop strings.

    Joined, the pieces are one decode of all tokens, cut before the stop string. No piece is taken back: what a later
    token can still change, and what may be the beginning of a stop string, is held back.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self._text = detokenizer(tokenizer, prompt)
        self._search = StopSearch(stop)

    def fork(self) -> TextStream:
        """Another stream, of a text that begins with what was pushed so far."""
        other = copy(self)
        other._text, other._search = self._text.fork(), copy(self._search)
        return other

    @property
    def stop(self) -> str | None:
        """The stop string that was found. All text before it was handed out, and there is no more."""
        return self._search.found

    def push(self, token: int) -> str:
        """The text that this token makes final."""
        return self._search.push(self._text.push(token))

    def finish(self) -> str:
        """What is still held back when the tokens end, with U+FFFD for bytes that never became a character."""
        tail = self._search.push(self._text.finish())
        return tail + self._search.finish()
