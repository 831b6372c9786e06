"""A bundle's tokenizer, and prompts to token ids."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError
from mxspec.formats.validation import shorten
from mxspec.runtime.text.encoding import check_expressions, encode_apart, encoder_of
from mxspec.runtime.text.untrusted_tokenizer import check_growth, guarded

LOSSY = 16  # factor for tokenizers that can make one token of many characters, such as <unk>
LONG = 1 << 14  # characters that take about 10 milliseconds
_PROBE = "A tokenizer, tried: 1, 2."


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, without the truncation and the padding that the file may ask for.

    Raises BundleError for an invalid file, and where the library panics over it or over a short text.
    """
    with guarded(f"{path}: cannot be read as a tokenizer"):
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        _check_merges(found)
        check_growth(found)
        check_expressions(found, text, _PROBE)
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
    try:
        with guarded(f"{path}: cannot be used as a tokenizer", partial(GenerationError, "")):
            ids = tokenizer.encode(_PROBE).ids if encoder_of(tokenizer) is None else []  # others are tried already
            tokenizer.decode(ids)
    except GenerationError:  # a file is valid even if it has no token for this text
        pass
    return tokenizer


def _check_merges(found: Any) -> None:
    """Raise ValueError where a merge lacks the prefix that the library cuts off its second token.

    It cuts bytes without looking, and an error that names half a character ends the whole process (tokenizers 0.23).
    """
    model = found.get("model") if isinstance(found, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(prefix, str) or not isinstance(model.get("merges"), list):
        return
    for merge in model["merges"]:
        second = (
            merge.split(" ")[-1] if isinstance(merge, str) else merge[-1] if isinstance(merge, list) and merge else ""
        )
        if not isinstance(second, str) or not second.startswith(prefix):
            raise ValueError(
                f"merge {shorten(merge)} does not go on with {shorten(prefix)}, the continuing_subword_prefix"
            )


def longest_text(tokenizer: Tokenizer, tokens: int) -> int:
    """Most UTF-8 bytes that so many tokens can hold; more of a tokenizer that drops or merges characters."""
    longest = max(len(name.encode()) for name in tokenizer.get_vocab(with_added_tokens=True))
    return tokens * longest * (1 if _keeps_bytes(tokenizer) else LOSSY)


def _keeps_bytes(tokenizer: Tokenizer) -> bool:
    """Whether each byte of a text is in one of its tokens: byte-level or with bytes as tokens, and not normalized."""
    found = {} if tokenizer.normalizer is None else json.loads(tokenizer.normalizer.__getstate__())
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = found.get("normalizers", [found] if found else [])
    plain = all(step == spaces or step["type"] == "Prepend" for step in steps)
    return plain and (getattr(tokenizer.model, "byte_fallback", False) or "ByteLevel" in repr(tokenizer.pre_tokenizer))


def encode_prompt(tokenizer: Tokenizer, text: str, bos_token_id: int | None) -> list[int]:
    """Token ids of a text, with the special tokens that the tokenizer puts around a prompt.

    A text that begins with the beginning-of-text token itself, as chat templates write it, gets no second one.
    Raises GenerationError for other types, and for a text that this tokenizer has no tokens for.
    """
    ids = _encode(tokenizer, text, special=True)
    if bos_token_id is not None and ids[:2] == [bos_token_id] * 2:
        plain = _encode(tokenizer, text, special=False)
        if plain and ids[1 : 1 + len(plain)] == plain:
            return ids[1:]
    return ids


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a text that has its special tokens written out, such as a rendered chat: none are added."""
    return _encode(tokenizer, text, special=False)


def check_ids(value: object, vocab_size: int, field: str = "prompt") -> list[int]:
    """Token ids as a list; raises GenerationError for anything but whole numbers below `vocab_size`.

    `field` is the field of the request that has them.
    """
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise GenerationError(field, f"got {type(value).__name__}, expected text or a list of token ids")
    for i, token in enumerate(value):
        if isinstance(token, bool | np.bool_) or not hasattr(token, "__index__"):
            raise GenerationError(field, f"got {token!r} at position {i}, expected token ids, which are whole numbers")
        if not 0 <= token < vocab_size:
            known = f"0 to {vocab_size - 1}: use the bundle's tokenizer"
            raise GenerationError(field, f"got token id {token} at position {i}, expected {known}")
    return [operator.index(token) for token in value]


def _encode(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    if not isinstance(text, str):
        raise GenerationError("prompt", f"got {type(text).__name__}, expected text or a list of token ids")
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise GenerationError(
            "prompt", f"got half a surrogate pair at character {problem.start}, expected text"
        ) from None
    if (encoder := encoder_of(tokenizer)) is not None:
        return encode_apart(encoder, text, special=special)
    with guarded("the tokenizer cannot encode this text", partial(GenerationError, "prompt")):
        if len(text) > LONG:  # of a batch, other threads run meanwhile
            return list(tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)
        return list(tokenizer.encode(text, add_special_tokens=special).ids)
