"""Texts that the fp16 target writes, for a user without a text like those that the model will see."""

from __future__ import annotations

from collections.abc import Callable

from mxspec.evaluate.accuracy.documents import Document
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import open_writer, text_length, write_texts
from mxspec.runtime.text.tokenizer import load_tokenizer

TOKENS = 8192  # by default


def write_documents(bundle: Bundle, tokens: int, seed: int, count: Callable[[int, int], object]) -> list[Document]:
    """About `tokens` tokens in texts that the baseline writes. Raises MxspecError for a model with an encoder.

    `count` gets the tokens that are written, and those to write.
    """
    entry = bundle.manifest.models["baseline"]
    if entry.encoder is not None:
        raise MxspecError("--own: a model with an encoder writes nothing without a source; give --source and --text")
    length = text_length(entry.context_length)
    number = max(1, tokens // length)
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        count(done, number * length)

    tokenizer = load_tokenizer(bundle.tokenizer_path)
    session = open_writer(bundle.path, entry, bundle.manifest.tokenizer.vocab_size, number)
    windows = write_texts(session, openings_of(bundle.path, tokenizer), number, length, seed, advance)
    texts = tokenizer.decode_batch(windows.tolist(), skip_special_tokens=False)
    return [Document(f"own text {i}", text) for i, text in enumerate(texts, 1) if text]
