"""Text that goes on after tokens, as the tokenizer writes it there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from tokenizers import Tokenizer

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.detokenize import detokenizer
from mxspec.runtime.text.encoding import encoder_of
from mxspec.runtime.text.panics import guarded

WINDOW = 8  # tokens before the text that are encoded with it: how a word is cut depends on what comes before it
_LEADING = bytes(range(0x80, 0xC0))  # bytes within a character


class Continuation:
    """Encodes texts after tokens of the same tokenizer; used by one thread at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises BundleError for a tokenizer whose texts have to be encoded by another process."""
        if encoder_of(tokenizer) is not None:
            raise BundleError(
                "a draft that writes text needs a target whose tokenizer has no expressions of its own; compile the "
                "bundle with --draft-tokens tli"
            )
        self._tokenizer = tokenizer
        self.bytes_of = cache(detokenizer(tokenizer).bytes_of)

    def after(self, before: Sequence[int], text: bytes) -> tuple[list[int], list[int]]:
        """Tokens of `text` after the tokens `before`, and the number of its bytes that end with each of them.

        Where the tokenizer would have cut the end of `before` together with the text, the text is encoded alone. A
        character that is not complete is left out; nothing comes back for a text that the tokenizer changes.
        """
        for window in (before[-WINDOW:], ()):
            found = self._encode(b"".join(map(self.bytes_of, window)).lstrip(_LEADING), text)
            if found is not None:
                return found
        return [], []

    def _encode(self, before: bytes, text: bytes) -> tuple[list[int], list[int]] | None:
        """None where no token ends with `before`."""
        whole = _characters(before + text)
        try:
            with guarded("tokenizer: cannot encode", GenerationError):
                ids = self._tokenizer.encode(whole.decode(), add_special_tokens=False).ids
        except GenerationError:
            return None
        pieces = [self.bytes_of(token) for token in ids]
        joined = b"".join(pieces)
        put_before = len(joined) - len(whole)  # some tokenizers put a space in front of every text
        ends = [end - put_before - len(before) for end in accumulate(map(len, pieces), initial=0)]
        if put_before not in (0, 1) or joined[put_before:] != whole or 0 not in ends:
            return None
        first = ends.index(0)
        return ids[first:], ends[first + 1 :]


def _characters(text: bytes) -> bytes:
    """The text up to the first byte that is no part of a whole character."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text
