"""A text's token ids, without the memory that a tokenizer takes for a long text at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mxspec.runtime.text.tokenizer import encode_rendered

PIECE = 1 << 20  # characters to encode at a time, up to the next line end


def encode_text(tokenizer: Tokenizer, text: str, vocab_size: int) -> NDArray[np.int32]:
    """Token ids int32[n], without ids that have no logits in the models."""
    pieces = (encode_rendered(tokenizer, piece) for piece in _pieces(text))
    ids = np.fromiter(chain.from_iterable(pieces), np.int32)
    return ids[ids < vocab_size]


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end
