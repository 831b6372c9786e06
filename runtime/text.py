"""Token ids to text and back, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mxspec.formats.errors import BundleError

HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for bytes that are no character yet
CONTEXT_TOKENS = 16  # tokens of the prompt that the first piece is decoded behind: it keeps its leading space


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise BundleError(f"{path}: cannot be read as a tokenizer: {error}") from None


class TextStream:
    """Turns tokens into text as they come, behind a prompt; holds back what ends inside a UTF-8 character."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        shown = list(prompt[-CONTEXT_TOKENS:])
        if self._decode(shown).endswith(HALF_CHARACTER):  # the stream would hold it back and repeat it all later
            shown = []
        self._stream = DecodeStream(ids=shown, skip_special_tokens=True)
        self._shown = shown  # tokens whose text is complete, those at the end
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes."""
        self._held.append(token)
        piece = self._stream.step(self._tokenizer, token)
        if piece is None:
            return ""
        self._shown = [*self._shown, *self._held][-CONTEXT_TOKENS:]
        self._held = []
        return piece

    def finish(self) -> str:
        """What is still held back, with U+FFFD for what never became a character."""
        return self._decode([*self._shown, *self._held])[len(self._decode(self._shown)) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
