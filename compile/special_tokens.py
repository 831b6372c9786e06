"""The ids that begin and end a text, as the checkpoint's configuration gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import TokenizerEntry
from mxspec.formats.validation import parse_json

_FILES = ("generation_config.json", "config.json")  # the first that has the key decides


def read_special_tokens(folder: Path, sha256: str, vocab_size: int) -> TokenizerEntry:
    """The manifest's tokenizer entry; raises CheckpointError for ids outside the vocabulary."""
    begin = _ids(folder, "bos_token_id", vocab_size)
    return TokenizerEntry(
        sha256=sha256,
        vocab_size=vocab_size,
        bos_token_id=begin[0] if begin else None,
        eos_token_ids=_ids(folder, "eos_token_id", vocab_size),
    )


def _ids(folder: Path, key: str, vocab_size: int) -> tuple[int, ...]:
    for name in _FILES:
        path = folder / name
        found: Any = parse_json(path.read_bytes(), str(path), CheckpointError) if path.is_file() else {}
        value = found.get(key) if isinstance(found, dict) else None
        if value is None:
            continue
        ids = tuple(value) if isinstance(value, list) else (value,)
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise CheckpointError(f"{path}: {key} {token!r} is not one of the tokenizer's {vocab_size} ids")
        return ids
    return ()
