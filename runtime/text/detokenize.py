"""Tokens to text, a token at a time: joined, the pieces are exactly one decode of all ids.

A piece is handed out once no later token can change it. What can still change depends on the tokenizer's decoder:

    byte-level   each token is bytes; those that end inside a UTF-8 character wait for the rest of it
    pieces       each token is text, but a run of byte tokens <0xE6> <0x97> <0xA5> is one: as a whole it is UTF-8, or
                 each of its bytes is a U+FFFD. So a run waits for its end, or for the first byte that makes it invalid
    whole        decoders that look at the whole text: all of it waits for the end

The library's own DecodeStream raises on some runs of bytes and gives other text than `decode` on others.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol, Self

from tokenizers import Tokenizer

from mxspec.runtime.text.untrusted_tokenizer import guarded

LOST = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for invalid UTF-8
CHARACTER_BYTES = 4  # bytes of a character in UTF-8, at most
SOME_TOKENS = 16  # tokens of a prompt: as many hardly ever have no text

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_EACH_ALONE = {"Replace", "ByteFallback", "Metaspace", "WordPiece", "Strip"}  # decoders that see one token at a time


class Detokenizer(Protocol):
    """Text of the tokens after a prompt, as it becomes final."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...

    def fork(self) -> Self:
        """Another detokenizer, for a text that begins with what was pushed so far."""

    def bytes_of(self, token: int) -> bytes:
        """What a token adds amid a text, as UTF-8 or a part of it; a special token is spelled out."""


def detokenizer(tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> Detokenizer:
    """The detokenizer of the tokens after `prompt`, for the decoder that this tokenizer has.

    Special tokens have no text. Where decode(prompt) is final, it and the pieces are decode(prompt and all tokens);
    a character that the prompt begins and the tokens complete is handed out whole.
    """
    steps = _decoder_steps(tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevel(tokenizer, prompt)
    fuse = kinds.index("Fuse") if "Fuse" in kinds else len(steps)
    if _EACH_ALONE.issuperset(kinds[:fuse]) and all(_begins_the_text(step) for step in steps[fuse:]):
        return Pieces(tokenizer, prompt, byte_runs="ByteFallback" in kinds)
    return Whole(tokenizer, prompt)


class Names:
    """The spelling of each token that decode reads; None for those it leaves out: special ones and unknown ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}

    def __getitem__(self, token: int) -> str | None:
        name = self._tokenizer.id_to_token(token)
        return None if name in self._special else name

    def spelled(self, token: int) -> bytes:
        """The spelling of any token; nothing for an unknown id."""
        return (self._tokenizer.id_to_token(token) or "").encode()


class Utf8:
    """UTF-8 byte by byte: `waiting` bytes at its end may yet become a character."""

    def __init__(self, errors: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def fork(self) -> Utf8:
        """Another decoder that has read the same bytes."""
        other = Utf8(self._decoder.errors)
        other._decoder.setstate(self._decoder.getstate())
        return other

    @property
    def waiting(self) -> int:
        return len(self._decoder.getstate()[0])

    def push(self, more: bytes) -> str:
        text = self._decoder.decode(more)
        state = self._decoder.getstate()[0]
        half_surrogate = state[:1] == b"\xed" and state[1:] >= b"\xa0"  # Python waits, but the rest is invalid
        return text + self.finish() if half_surrogate else text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def reset(self) -> None:
        self._decoder.reset()


class ByteLevel:
    """GPT-2's decoder: all tokens are bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._names = Names(tokenizer)
        self._utf8 = Utf8("replace")
        tail = b""
        for token in reversed(prompt):
            tail = self._bytes(token) + tail
            if len(tail) >= CHARACTER_BYTES:
                break
        self._utf8.push(tail)
        self._shown = self._utf8.waiting > 0  # decode(prompt) has a U+FFFD for this half character

    def push(self, token: int) -> str:
        return self._without_shown(self._utf8.push(self._bytes(token)))

    def finish(self) -> str:
        return self._without_shown(self._utf8.finish())

    def fork(self) -> Self:
        other = copy(self)
        other._utf8 = self._utf8.fork()
        return other

    def bytes_of(self, token: int) -> bytes:
        return self._bytes(token) or self._names.spelled(token)

    def _bytes(self, token: int) -> bytes:
        name = self._names[token] or ""
        try:
            return bytes(map(BYTE_OF_LETTER.__getitem__, name))
        except KeyError:  # an added token, which is spelled as it is
            return name.encode()

    def _without_shown(self, text: str) -> str:
        if text and self._shown:
            self._shown = False
            return text.removeprefix(LOST)
        return text


class Pieces:
    """Decoders that see one token at a time, and runs of byte tokens: those of SentencePiece and WordPiece.

    A token is decoded after a fixed one, `after`, because decoders drop the space that begins a text; those that may
    still begin the text are decoded together.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], *, byte_runs: bool) -> None:
        self._tokenizer = tokenizer
        self._names = Names(tokenizer)
        self._byte_runs = byte_runs
        self._after = self._any_piece()
        self._run: list[int] = []  # byte tokens whose text is not final
        self._utf8 = Utf8("strict")
        self._invalid: list[int] = []  # bytes of the run that are invalid UTF-8: each later one is a U+FFFD
        self._beginning: list[int] | None = None  # all tokens, while they have no text
        self._shown = 0  # bytes of the run that decode(prompt) has as U+FFFD
        self._read_prompt(prompt)

    def push(self, token: int) -> str:
        name = self._names[token]
        if name is None:
            return ""
        byte = _BYTE_TOKEN.fullmatch(name) if self._byte_runs else None
        return self._end_run() + self._text([token]) if byte is None else self._push_byte(token, int(byte[1], 16))

    def finish(self) -> str:
        return self._end_run()

    def fork(self) -> Self:
        other = copy(self)
        other._run, other._invalid, other._utf8 = list(self._run), list(self._invalid), self._utf8.fork()
        other._beginning = None if self._beginning is None else list(self._beginning)
        return other

    def bytes_of(self, token: int) -> bytes:
        name = self._names[token]
        if name is None:
            return self._names.spelled(token)
        byte = _BYTE_TOKEN.fullmatch(name) if self._byte_runs else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return _decode(self._tokenizer, [*self._after, token])[len(_decode(self._tokenizer, self._after)) :].encode()

    def _read_prompt(self, prompt: Sequence[int]) -> None:
        """Take over the half character, or the invalid run, that the prompt ends with."""
        run: list[int] = []
        for token in reversed(prompt):
            if self._is_byte(token):
                run.append(token)
            elif self._names[token] is not None:
                break
        for token in reversed(run):
            self.push(token)
        self._shown = self._utf8.waiting
        self._run = self._run[len(self._run) - self._shown :]
        if not (_decode(self._tokenizer, prompt[-SOME_TOKENS:]) or _decode(self._tokenizer, prompt)):
            self._beginning = [token for token in prompt if self._names[token] is not None]

    def _is_byte(self, token: int) -> bool:
        return self._byte_runs and _BYTE_TOKEN.fullmatch(self._names[token] or "") is not None

    def _push_byte(self, token: int, byte: int) -> str:
        if self._invalid:
            return self._text([token], self._invalid)
        self._run.append(token)
        unfinished = self._utf8.waiting
        try:
            self._utf8.push(bytes([byte]))
        except UnicodeDecodeError:
            self._invalid = self._run[-1 - unfinished :]
            return self._take_run()
        return ""

    def _end_run(self) -> str:
        text = self._take_run()
        self._invalid = []
        return text

    def _take_run(self) -> str:
        run, self._run = self._run, []
        shown, self._shown = self._shown, 0
        self._utf8.reset()
        return self._text(run).removeprefix(LOST * shown) if run else ""

    def _text(self, tokens: list[int], before: Sequence[int] = ()) -> str:
        """The text that these tokens add after the tokens `before`."""
        if self._beginning is not None:
            self._beginning += tokens
            text = _decode(self._tokenizer, self._beginning)
            if text:
                self._beginning = None
            return text
        known = [*self._after, *before]
        return _decode(self._tokenizer, [*known, *tokens])[len(_decode(self._tokenizer, known)) :]

    def _any_piece(self) -> list[int]:
        """A token with a text of its own; an empty list where all tokens are bytes."""
        ids = range(self._tokenizer.get_vocab_size())
        names = ((token, self._names[token]) for token in ids)
        pieces = ([token] for token, name in names if name and not _BYTE_TOKEN.fullmatch(name))
        return next((piece for piece in pieces if _decode(self._tokenizer, piece)), [])


class Whole:
    """Decoders that need all tokens: nothing is final before the end."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        self._tokens: list[int] = []

    def push(self, token: int) -> str:
        self._tokens.append(token)
        return ""

    def fork(self) -> Self:
        other = copy(self)
        other._tokens = list(self._tokens)
        return other

    def bytes_of(self, token: int) -> bytes:
        return _decode(self._tokenizer, [token]).encode() or Names(self._tokenizer).spelled(token)

    def finish(self) -> str:
        before = _decode(self._tokenizer, self._prompt)
        text = _decode(self._tokenizer, self._prompt + self._tokens)
        return text[len(before) :] if text.startswith(before) else _decode(self._tokenizer, self._tokens)


def _decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    with guarded("tokenizer: cannot decode"):
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The decoder's steps in their order, as tokenizer.json has them; a sequence in a sequence laid flat."""

    def flat(step: dict[str, Any]) -> list[dict[str, Any]]:
        inner = step.get("decoders") if step["type"] == "Sequence" else None
        return [step] if inner is None else [last for each in inner for last in flat(each)]

    return [] if tokenizer.decoder is None else flat(json.loads(tokenizer.decoder.__getstate__()))


def _begins_the_text(step: dict[str, Any]) -> bool:
    """Whether a decoder that is given the fused text changes its beginning alone, or each character by itself."""
    match step:
        case {"type": "Fuse"} | {"type": "Strip", "stop": 0}:
            return True
        case {"type": "Replace", "pattern": {"String": pattern}}:
            return len(pattern) == 1
    return False


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for 256 and up, in their order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_LETTER = _byte_letters()
