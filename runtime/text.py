"""Token ids to text and back, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mxspec.formats.errors import BundleError


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise BundleError(f"{path}: cannot be read as a tokenizer: {error}") from None


class TextStream:
    """Turns tokens into text as they come; holds back what ends inside a UTF-8 character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._shown = 0  # characters

    def push(self, token: int) -> str:
        """The text that this token completes."""
        self._ids.append(token)
        piece = self._stream.step(self._tokenizer, token) or ""
        self._shown += len(piece)
        return piece

    def finish(self) -> str:
        """What is still held back: the rest of the text, with U+FFFD for what never became a character."""
        return self.decode(self._ids)[self._shown :]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
