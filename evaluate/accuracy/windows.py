"""A text cut into the windows that a model reads: where each begins, and which of its tokens are scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from mxspec.formats.errors import MxspecError
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered

LONGEST = 2048  # tokens of a window unless asked for: the time that attention takes grows with the square
_PROBE = "a"


@dataclass(frozen=True, slots=True)
class Cut:
    """How texts are cut: `lead` begins every window of at most `length` tokens, `stride` tokens after the last."""

    lead: tuple[int, ...]
    length: int
    stride: int


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are read from an empty context; the last `scored` of them count. `first` is the place of the first
    that counts among the tokens of its document. An encoder reads the `source` before."""

    tokens: tuple[int, ...]
    scored: int
    document: int
    first: int
    source: tuple[int, ...] = ()


def choose_cut(lead: Sequence[int], context: int, window: int | None, stride: int | None) -> Cut:
    """Windows of `window` tokens, those of `lead` among them. By default min(context, LONGEST) without overlap.

    Raises MxspecError for windows that the model cannot read or that have no room for text.
    """
    length = min(context, LONGEST) if window is None else window
    if not len(lead) + (0 if lead else 1) < length <= context:
        least = len(lead) + (1 if lead else 2)
        raise MxspecError(f"--window: got {length} tokens, expected {least} to {context}, the context of the model")
    room = length - len(lead)
    if stride is not None and stride > length:
        raise MxspecError(f"--stride: got {stride} tokens, expected at most {length}, the window: others are left out")
    return Cut(tuple(lead), length, min(room if stride is None else stride, room))


def cut_text(tokens: Sequence[int], cut: Cut, document: int = 0) -> Iterator[Window]:
    """Cut a document so that each token is scored once, in the first window that holds it.

    Without a lead nothing predicts the first token of a text, or of a window that no other overlaps: it is left out.
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
    """The special tokens that a tokenizer puts before a text: mostly the beginning-of-text token, or none."""
    whole, plain = encode_prompt(tokenizer, _PROBE, bos), encode_rendered(tokenizer, _PROBE)
    places = [at for at in range(len(whole) - len(plain) + 1) if whole[at : at + len(plain)] == plain]
    return tuple(whole[: places[0]]) if plain and places else ()


def encode_text(tokenizer: Tokenizer, text: str, lead: Sequence[int]) -> list[int]:
    """Tokens of a text without any that the tokenizer puts around it; a lead that is written out goes, too."""
    plain = encode_rendered(tokenizer, text)
    return plain[len(lead) :] if lead and plain[: len(lead)] == list(lead) else plain
