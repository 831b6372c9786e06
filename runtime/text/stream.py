"""Token ids to text, piece by piece: text is handed on only where it cannot be the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError
from mxspec.runtime.text.detokenize import detokenizer


class StopSearch:
    """Passes text on up to the first stop string, however the text is cut into pieces.

    The first stop string is the one that ends first; of those that end together, the longest. `found` is that string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""  # what may be the beginning of a stop string
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is no part of a stop string, whatever comes; nothing after one was found."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, length, self.found = min(found)
            self._held = ""
            return text[: end + length]
        shown = len(text) - self._beginning(text)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """The text that was held back, once the text ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)), 0)


def check_stops(value: object) -> tuple[str, ...]:
    """Stop strings given as one or as several; raises GenerationError for an empty one and for other types."""
    if isinstance(value, str):
        return check_stops((value,))
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray | memoryview):
        raise GenerationError("stop", f"got {type(value).__name__}, expected a string or a list of strings")
    for stop in value:
        if not isinstance(stop, str):
            raise GenerationError("stop", f"got {stop!r} in the list, expected strings")
        if not stop:
            raise GenerationError("stop", "got an empty string, which would end every text before it begins")
    return tuple(value)


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
