"""The names of tokens in log-probabilities: their texts, or their bytes where these are not a text."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer

from mxspec.runtime.text.detokenize import detokenizer


class TokenTexts:
    """Texts and bytes of single tokens, as they are amid a text; from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bytes_of = cache(detokenizer(tokenizer).bytes_of)  # a token's UTF-8, or a part of a character's

    def text(self, token: int) -> str:
        """The token's text, with U+FFFD for incomplete characters."""
        return self.bytes_of(token).decode("utf-8", "replace")

    def name(self, token: int) -> str:
        r"""The text, or `bytes:\xe2\x80` for what is no whole character: OpenAI's spelling, another for each token."""
        try:
            return self.bytes_of(token).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes_of(token))
