"""Do target and draft speak the same token ids? Compared by the token → id maps of their tokenizer.json files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.config import architecture_name
from mxspec.formats.errors import CheckpointError, PairError
from mxspec.formats.validation import parse_json

MOST_ALONE = 0.1  # of the target's tokens that only one tokenizer may have: whole families of added tokens are fewer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token → id, added tokens included; `size` is one more than the largest id, `added` the ids of added tokens."""

    ids: dict[str, int]
    added: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        """Ids from here on belong to no token."""
        return max(self.ids.values()) + 1

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Read a tokenizer.json. Raises CheckpointError for a strange one."""
        found = parse_json(path.read_bytes(), str(path), CheckpointError)
        try:
            added = {str(token["content"]): int(token["id"]) for token in found.get("added_tokens", [])}
            ids = _model_ids(found["model"]["vocab"]) | added
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CheckpointError(f"{path}: mxspec cannot read its vocabulary") from None
        if not ids or min(ids.values()) < 0:
            raise CheckpointError(f"{path}: the vocabulary is empty or has negative ids")
        return cls(ids, frozenset(added.values()))


def _model_ids(vocab: Any) -> dict[str, int]:
    """BPE, WordPiece and WordLevel map token to id; Unigram lists [token, score] in order of id."""
    if isinstance(vocab, list):
        return {str(token): index for index, (token, _) in enumerate(vocab)}
    return {str(token): int(index) for token, index in vocab.items()}


def check_pair(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Raise PairError unless every token that both have is one id in both; what to say of those that one lacks.

    Such a token is never proposed or, where the draft lacks it, never guessed: no text changes. But hardly a token may
    be so, or the tokenizers are not of one family.
    """
    moved = [token for token, number in target.ids.items() if draft.ids.get(token, number) != number]
    names = {number: token for token, number in draft.ids.items()}
    moved += [token for token, number in target.ids.items() if names.get(number, token) != token]
    alone = target.ids.keys() ^ draft.ids.keys()
    if moved or len(alone) > MOST_ALONE * len(target.ids):
        differing = alone.union(moved)
        first = min(differing, key=lambda token: (target.ids.get(token, draft.ids.get(token, 0)), token))
        raise PairError(
            f"target and draft have different tokenizers: {len(differing)} tokens differ, such as {first!r}, "
            f"id {target.ids.get(first, 'none')} in the target and {draft.ids.get(first, 'none')} in the draft; "
            "choose a draft of the target's own family"
        )
    if not alone:
        return None
    return f"{len(alone)} tokens, such as {min(alone)!r}, are in one tokenizer of the pair alone, and never guessed"


def check_kinds(target: PreTrainedConfig, draft: PreTrainedConfig) -> None:
    """Raise PairError unless both models have an encoder, or neither has."""
    if bool(target.is_encoder_decoder) != bool(draft.is_encoder_decoder):
        kinds = {True: "an encoder-decoder", False: "a decoder alone"}
        one, other = (kinds[bool(config.is_encoder_decoder)] for config in (target, draft))
        raise PairError(
            f"the target, {architecture_name(target)}, is {one}, but the draft, {architecture_name(draft)}, is "
            f"{other}; choose a draft of the target's own family, or no draft"
        )


def usable_ids(model: str, vocabulary: Vocabulary, logits: int) -> int:
    """How many of the tokenizer's ids a model knows: all, but for added tokens that it has no logits for.

    Logits beyond the tokenizer's ids are padding, which the runtime masks. Raises PairError where an ordinary token
    has no logit.
    """
    beyond = [token for token, number in vocabulary.ids.items() if number >= logits]
    strange = [token for token in beyond if vocabulary.ids[token] not in vocabulary.added]
    if strange:
        raise PairError(
            f"the {model} has {logits} logits for a tokenizer of {vocabulary.size} ids, of which {strange[0]!r} is no "
            "added token; the tokenizer belongs to another model"
        )
    return min(vocabulary.size, logits)
