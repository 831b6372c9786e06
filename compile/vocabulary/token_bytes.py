"""The bytes of each token of a tokenizer.json: what two tokenizers can be compared by.

Written forms differ: for a space and é, byte-level BPE writes Ġ and Ã©, sentencepiece ▁ and é, or <0xC3> and <0xA9>.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mxspec.compile.planning.pair import TokenIds
from mxspec.formats.errors import CheckpointError, PairError
from mxspec.formats.validation import parse_json
from mxspec.runtime.text.detokenize import BYTE_OF_LETTER

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The bytes of ordinary tokens by id, and the written forms of special tokens by id.

    `spare` has tokens for single bytes that are only written where no other token has the byte.
    """

    ordinary: dict[int, bytes]
    special: dict[int, str]
    spare: frozenset[int] = frozenset()

    @classmethod
    def read(cls, path: Path, model: str, known: int) -> Self:
        """Those of a `model`'s tokenizer.json, for ids below `known`.

        Raises PairError if the tokens of such a tokenizer are not bytes, as those of WordPiece.
        """
        found = parse_json(path.read_bytes(), str(path), CheckpointError)
        kinds = set(_kinds(found.get("decoder"))) or set(_kinds(found.get("pre_tokenizer")))
        added = found.get("added_tokens") or []
        special = {int(token["id"]): str(token["content"]) for token in added if token.get("special")}
        literal = {int(token["id"]) for token in added}
        ordinary: dict[int, bytes] = {}
        spare: set[int] = set()
        for token, number in TokenIds.read(path).ids.items():
            if number in special or number >= known:
                continue
            if number in literal:
                text: bytes | None = token.encode()
            elif "ByteLevel" in kinds:
                text = _of_byte_level(token)
            elif kinds & {"ByteFallback", "Metaspace"}:
                text = _of_sentencepiece(token)
                if _FALLBACK.fullmatch(token):
                    spare.add(number)
            else:
                kind = found["model"].get("type") or "its kind"
                raise PairError(f"the tokens of the {model}'s tokenizer ({kind}) are not bytes of the text")
            if text:
                ordinary[number] = text
        return cls(ordinary, {id: text for id, text in special.items() if id < known}, frozenset(spare))

    def by_bytes(self) -> dict[bytes, int]:
        """The token of each byte string: the lowest id, and one of `spare` only if there is no other."""
        found: dict[bytes, int] = {}
        for number in sorted(self.ordinary, key=lambda number: (number in self.spare, number)):
            found.setdefault(self.ordinary[number], number)
        return found


def _kinds(part: Any) -> Iterator[str]:
    """The types of a decoder or pre-tokenizer, and of those that it is a sequence of."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        for inner in (*part.get("decoders", ()), *part.get("pretokenizers", ())):
            yield from _kinds(inner)


def _of_byte_level(token: str) -> bytes | None:
    """The bytes of a token in GPT-2's alphabet, or None for a token with other characters."""
    try:
        return bytes(BYTE_OF_LETTER[letter] for letter in token)
    except KeyError:
        return None


def _of_sentencepiece(token: str) -> bytes:
    if (byte := _FALLBACK.fullmatch(token)) is not None:
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode()
