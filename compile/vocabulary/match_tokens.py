"""Two tokenizers side by side: which tokens are the same bytes, and how one reads the tokens of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.vocabulary.token_bytes import TokenBytes

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
