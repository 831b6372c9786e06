"""Two tokenizers side by side: which tokens are the same bytes, and how one reads the tokens of the other.

Tokens are compared by their bytes, because written forms differ: for a space and é, byte-level BPE writes Ġ and Ã©,
sentencepiece ▁ and é, or <0xC3> and <0xA9>.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

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


UNKNOWN = ("<unk>", "[UNK]", "<|unk|>")  # usual names of the token for what a tokenizer cannot write


@dataclass(frozen=True, slots=True)
class Side:
    """A model's tokens, the ids that end a text, and the id that begins one, if the model has one."""

    tokens: TokenBytes
    ends: Sequence[int]
    begin: int | None


@dataclass(frozen=True, slots=True)
class MatchedTokens:
    """The draft's id of each target id that both have; `shared` counts the draft's ordinary tokens among them."""

    draft_of: Mapping[int, int]
    shared: int

    @classmethod
    def of(cls, target: Side, draft: Side) -> MatchedTokens:
        """Ordinary tokens by their bytes; special tokens by their role, or else by their written form."""
        ours, theirs = target.tokens.by_bytes(), draft.tokens.by_bytes()
        same = {ours[text]: theirs[text] for text in ours.keys() & theirs.keys()}
        special: dict[int, int] = {}
        written = {text: number for number, text in draft.tokens.special.items()}
        roles = [*zip(target.ends, draft.ends, strict=False)]
        if target.begin is not None and draft.begin is not None:
            roles.append((target.begin, draft.begin))
        by_name = [(number, written[text]) for number, text in target.tokens.special.items() if text in written]
        taken = set(same.values())
        for number, other in (*by_name, *roles):
            if number not in special and number not in same and other not in taken:
                special[number] = other
                taken.add(other)
        return cls(same | special, len(same))


def writing_arrays(target: Side, draft: Side, matched: MatchedTokens, known: int) -> dict[str, NDArray[Any]]:
    """What a draft of `known` ids writes with each, for the bundle's file (docs/bundle.md): bytes, and partners."""
    partners = np.full(known, -1, np.int32)
    if target.ends:
        partners[list(draft.ends)] = target.ends[0]
    for ours, theirs in matched.draft_of.items():
        partners[theirs] = ours
    texts = [draft.tokens.ordinary.get(token, b"") for token in range(known)]
    begins = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    return {"head_ids": partners, "texts": np.frombuffer(b"".join(texts), np.uint8), "text_begins": begins}


class TokenReading:
    """How a draft reads each token of the target: as its partner, or as the fewest tokens with the same bytes."""

    def __init__(self, target: Side, draft: Side, matched: MatchedTokens) -> None:
        self._target, self._draft, self._matched = target, draft, matched
        self._pieces = draft.tokens.by_bytes()
        self._longest = max(map(len, self._pieces), default=0)
        unknown = [number for number, text in draft.tokens.special.items() if text in UNKNOWN]
        self._unknown = unknown[0] if unknown else 0

    def of(self, token: int) -> list[int]:
        """The draft's ids for a token of the target; there is at least one."""
        if (partner := self._matched.draft_of.get(token)) is not None:
            return [partner]
        if token == self._target.begin and self._draft.ends:
            return [self._draft.ends[0]]  # many models without a beginning separate texts by their end
        if token in self._target.ends and self._draft.ends:
            return [self._draft.ends[0]]
        text = self._target.tokens.ordinary.get(token)
        if text is None:
            text = self._target.tokens.special.get(token, "").encode()
        return self._split(text) or [self._unknown]

    def arrays(self, vocab_size: int) -> dict[str, NDArray[np.int32]]:
        """`begins` and `ids` of the bundle's file (docs/bundle.md)."""
        read = [self.of(token) for token in range(vocab_size)]
        begins = np.cumsum([0, *map(len, read)])
        return {"begins": begins.astype(np.int32), "ids": np.concatenate(read).astype(np.int32)}

    def _split(self, text: bytes) -> list[int]:
        """The fewest of the draft's tokens, the longest first; empty if some byte is in none of them."""
        fewest: list[tuple[int, int] | None] = [None] * len(text) + [(0, 0)]  # tokens to the end, and the next place
        for begin in reversed(range(len(text))):
            for end in range(min(len(text), begin + self._longest), begin, -1):
                rest, best = fewest[end], fewest[begin]
                if rest is not None and text[begin:end] in self._pieces and (best is None or rest[0] + 1 < best[0]):
                    fewest[begin] = (rest[0] + 1, end)
        found, begin = [], 0
        while begin < len(text):
            step = fewest[begin]
            if step is None:
                return []
            found.append(self._pieces[text[begin : step[1]]])
            begin = step[1]
        return found
