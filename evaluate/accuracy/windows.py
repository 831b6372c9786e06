"""Cut a text into the windows that a model reads: where each begins, and which of its tokens are scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from mxspec.formats.errors import MxspecError
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered

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
