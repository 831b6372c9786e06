"""The ids that begin and end a text, from the checkpoint's configuration."""

from __future__ import annotations

from pathlib import Path

from mxspec.compile.checkpoint.settings.generation_config import CONFIG, GENERATION_CONFIG, read_object
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import TokenizerEntry

_FILES = (GENERATION_CONFIG, CONFIG)  # the first that has the key decides


def read_special_tokens(
    folder: Path, sha256: str, vocab_size: int, *, is_encoder_decoder: bool = False
) -> TokenizerEntry:
    """The manifest's tokenizer entry, with a decoder's first ids if the model has an encoder.

    Raises CheckpointError for ids outside the vocabulary, and if the decoder's first id is missing.
    """
    begin, ends = read_ends(folder, vocab_size)
    return TokenizerEntry(
        sha256=sha256,
        vocab_size=vocab_size,
        bos_token_id=begin,
        eos_token_ids=ends,
        decoder_start=_decoder_start(folder, vocab_size) if is_encoder_decoder else (),
    )


def read_ends(folder: Path, vocab_size: int) -> tuple[int | None, tuple[int, ...]]:
    """The id that begins a text, if there is one, and those that end one. Raises CheckpointError as above."""
    begin = _ids(folder, "bos_token_id", vocab_size)
    return begin[0] if begin else None, _ids(folder, "eos_token_id", vocab_size)


def _decoder_start(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids with which transformers' generate begins an answer: a start id, and perhaps a forced second one."""
    for key in ("decoder_start_token_id", "bos_token_id"):
        if start := _ids(folder, key, vocab_size):
            return start[:1] + _ids(folder, "forced_bos_token_id", vocab_size)[:1]
    raise CheckpointError(f"{folder}: neither {' nor '.join(_FILES)} has a decoder_start_token_id")


def _ids(folder: Path, key: str, vocab_size: int) -> tuple[int, ...]:
    for name in _FILES:
        path = folder / name
        value = read_object(path).get(key)
        if value is None:
            continue
        ids = tuple(value) if isinstance(value, list) else (value,)
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise CheckpointError(f"{path}: {key} {token!r} is not one of the tokenizer's {vocab_size} ids")
        return ids
    return ()
