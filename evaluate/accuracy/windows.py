"""Cut texts into the windows that a model reads: where each begins, and which of its tokens are scored.

With an encoder, a window is an answer, and the encoder reads its source: two files, line by line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from mxspec.evaluate.accuracy.documents import FIELD, Document, read_lines
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import EncoderEntry, TokenizerEntry
from mxspec.runtime.text.tokenizer import check_ids, encode_prompt, encode_rendered

LONGEST = 2048  # default tokens of a window: the time of attention grows with the square
_PROBE = "a"


@dataclass(frozen=True, slots=True)
class Cut:
    """How texts are cut: windows of at most `length` tokens, `stride` tokens apart; each begins with `lead`."""

    lead: tuple[int, ...]
    length: int
    stride: int


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are read from an empty context; the last `scored` of them are scored.

    `first` is the index of the first scored token in its document. An encoder reads `source` first.
    """

    tokens: tuple[int, ...]
    scored: int
    document: int
    first: int
    source: tuple[int, ...] = ()


def choose_cut(lead: Sequence[int], context: int, window: int | None, stride: int | None) -> Cut:
    """Windows of `window` tokens, which include `lead`; by default min(context, LONGEST), without overlap.

    Raises MxspecError for windows that are too long for the model, or have no room for text.
    """
    length = min(context, LONGEST) if window is None else window
    if not len(lead) + (0 if lead else 1) < length <= context:
        least = len(lead) + (1 if lead else 2)
        raise MxspecError(f"--window: got {length} tokens, expected {least} to {context}, the context of the model")
    room = length - len(lead)
    if stride is not None and stride > length:
        raise MxspecError(
            f"--stride: got {stride} tokens, expected at most {length}, the window; a longer stride skips tokens"
        )
    return Cut(tuple(lead), length, min(room if stride is None else stride, room))


def cut_text(tokens: Sequence[int], cut: Cut, document: int = 0) -> Iterator[Window]:
    """Cut a document so that each token is scored once, in the first window that holds it.

    Without a lead, nothing predicts the first token of a text or of a window without overlap: that token is left out.
    """
    room, done = cut.length - len(cut.lead), 0
    for begin in range(0, len(tokens), cut.stride):
        piece = tokens[begin : begin + room]
        end = begin + len(piece)
        unpredicted = 1 if begin == done and not cut.lead else 0
        if (scored := end - done - unpredicted) > 0:
            yield Window((*cut.lead, *piece), scored, document, end - scored)
        done = end
        if end == len(tokens):
            return


def leading_tokens(tokenizer: Tokenizer, bos: int | None) -> tuple[int, ...]:
    """The special tokens that a tokenizer puts before a text: usually the beginning-of-text token, or none."""
    whole, plain = encode_prompt(tokenizer, _PROBE, bos), encode_rendered(tokenizer, _PROBE)
    places = [at for at in range(len(whole) - len(plain) + 1) if whole[at : at + len(plain)] == plain]
    return tuple(whole[: places[0]]) if plain and places else ()


def encode_text(tokenizer: Tokenizer, text: str, lead: Sequence[int]) -> list[int]:
    """The tokens of a text without the special tokens around it; a lead that the text spells out is removed too."""
    plain = encode_rendered(tokenizer, text)
    return plain[len(lead) :] if lead and plain[: len(lead)] == list(lead) else plain


# --- sources and answers ---


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
