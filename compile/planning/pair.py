"""Do target and draft use the same token ids? Compares the token → id maps of their tokenizer.json files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.settings.architecture import architecture_name
from mxspec.formats.errors import CheckpointError, PairError
from mxspec.formats.validation import parse_json

MOST_ALONE = 0.1  # of the target's tokens may be missing from one tokenizer: families of added tokens are smaller


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token → id, with added tokens; `size` is the largest id plus one, `added` the ids of added tokens."""

    ids: dict[str, int]
    added: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        """The largest id plus one."""
        return max(self.ids.values()) + 1

    @classmethod
    def read(cls, path: Path) -> TokenIds:
        """Read a tokenizer.json. Raises CheckpointError if it is invalid."""
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


def check_pair(target: TokenIds, draft: TokenIds) -> str | None:
    """Raise PairError unless shared tokens have the same id in both; return a note on tokens that one model lacks.

    Such a token is never proposed or, if the draft lacks it, never guessed, so no text changes. But only few tokens may
    differ; otherwise the tokenizers are of different families.
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
    """Raise PairError if only one of the models has an encoder."""
    if bool(target.is_encoder_decoder) != bool(draft.is_encoder_decoder):
        kinds = {True: "an encoder-decoder", False: "a decoder alone"}
        one, other = (kinds[bool(config.is_encoder_decoder)] for config in (target, draft))
        raise PairError(
            f"the target, {architecture_name(target)}, is {one}, but the draft, {architecture_name(draft)}, is "
            f"{other}; choose a draft of the target's own family, or no draft"
        )


def usable_ids(model: str, vocabulary: TokenIds, logits: int) -> int:
    """The number of the tokenizer's ids that a model knows: all except added tokens without logits.

    Logits beyond the tokenizer's ids are padding, which the runtime masks. Raises PairError if an ordinary token has no
    logit.
    """
    beyond = [token for token, number in vocabulary.ids.items() if number >= logits]
    strange = [token for token in beyond if vocabulary.ids[token] not in vocabulary.added]
    if strange:
        raise PairError(
            f"the {model} has {logits} logits for a tokenizer of {vocabulary.size} ids, of which {strange[0]!r} is no "
            "added token; the tokenizer belongs to another model"
        )
    return min(vocabulary.size, logits)
