"""Sources and their answers: two files, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from mxspec.evaluate.accuracy.documents import FIELD, Document, read_lines
from mxspec.evaluate.accuracy.windows import Window, encode_text, leading_tokens
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import EncoderEntry, TokenizerEntry
from mxspec.runtime.text.tokenizer import check_ids, encode_prompt


def read_pairs(sources: Sequence[str], texts: Sequence[str], field: str = FIELD) -> list[Document]:
    """Pair each line of the source files with the same line of the text files; a pair of empty lines is left out.

    A row of a table counts as a line, its `field`. Raises MxspecError for a file that cannot be read, and for a line
    without a partner.
    """
    if len(sources) != len(texts):
        raise MxspecError(f"--source: got {len(sources)} files, expected {len(texts)}, one for each --text")
    return [document for pair in zip(sources, texts, strict=True) for document in _lines(*pair, field)]


def _lines(source: str, text: str, field: str) -> Iterator[Document]:
    read, written = read_lines(Path(source), "--source", field), read_lines(Path(text), "--text", field)
    if len(read) != len(written):
        raise MxspecError(
            f"--source {source}: has {len(read):,} lines, --text {text} {len(written):,}: expected a line for each"
        )
    for number, (line, answer) in enumerate(zip(read, written, strict=True), 1):
        if bool(line.strip()) != bool(answer.strip()):
            empty = f"--text {text}" if line.strip() else f"--source {source}"
            raise MxspecError(f"{empty}: line {number:,} is empty, and its partner is not")
        if answer.strip():
            yield Document(f"{text}:{number}", answer, line)


def pair_windows(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    entry: TokenizerEntry,
    encoder: EncoderEntry,
    context: int,
    most: int | None,
) -> list[Window]:
    """A window for each answer, up to `most` tokens of answers in all: the decoder's first tokens, then the answer.

    The end token that the tokenizer puts after a text is scored too. Raises MxspecError for sources and answers that
    are too long for the models.
    """
    lead = leading_tokens(tokenizer, entry.bos_token_id)
    windows: list[Window] = []
    for number, document in enumerate(documents):
        if most == 0:
            break
        assert document.source is not None
        source = check_ids(encode_prompt(tokenizer, document.source, entry.bos_token_id), entry.vocab_size)
        if len(source) > encoder.context_length:
            raise MxspecError(
                f"--source: got {len(source):,} tokens for {document.name}, expected at most "
                f"{encoder.context_length:,}, the context of the encoder"
            )
        answer = _answer(tokenizer, document.text, entry, lead)[:most]
        if len(entry.decoder_start) + len(answer) > context:
            raise MxspecError(
                f"--text: got {len(answer):,} tokens in {document.name}, expected at most "
                f"{context - len(entry.decoder_start):,}, for which the context has room"
            )
        most = None if most is None else most - len(answer)
        windows.append(Window((*entry.decoder_start, *answer), len(answer), number, 0, tuple(source)))
    if not windows:
        raise MxspecError("--text: holds no answers, expected a line for each source")
    return windows


def _answer(tokenizer: Tokenizer, text: str, entry: TokenizerEntry, lead: Sequence[int]) -> list[int]:
    """The tokens that a model should write: those of a text with its special tokens, without the `lead`."""
    plain = encode_text(tokenizer, text, lead)
    whole = check_ids(encode_prompt(tokenizer, text, entry.bos_token_id), entry.vocab_size)
    begun = len(lead) if len(entry.decoder_start) > 1 or list(lead) == list(entry.decoder_start) else 0
    return whole[begun:] if whole[len(lead) : len(lead) + len(plain)] == plain else plain
