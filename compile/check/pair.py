"""Do target and draft speak the same token ids? Compared by the token → id maps of their tokenizer.json files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.formats.errors import CheckpointError, PairError
from mxspec.formats.manifest import TOKENIZER
from mxspec.formats.validation import parse_json


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token → id, added tokens included; `size` is one more than the largest id."""

    ids: dict[str, int]

    @property
    def size(self) -> int:
        """Ids from here on belong to no token."""
        return max(self.ids.values()) + 1

    @classmethod
    def read(cls, folder: Path) -> Vocabulary:
        """Read a checkpoint's tokenizer.json. Raises CheckpointError for a missing or strange one."""
        path = folder / TOKENIZER
        if not path.is_file():
            raise CheckpointError(
                f"{folder}: no {TOKENIZER}; save a fast tokenizer there with tokenizer.save_pretrained"
            )
        found = parse_json(path.read_bytes(), str(path), CheckpointError)
        try:
            ids = _model_ids(found["model"]["vocab"])
            ids |= {str(token["content"]): int(token["id"]) for token in found.get("added_tokens", [])}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CheckpointError(f"{path}: no vocabulary in it that mxspec can read") from None
        if not ids or min(ids.values()) < 0:
            raise CheckpointError(f"{path}: the vocabulary is empty or has negative ids")
        return cls(ids)


def _model_ids(vocab: Any) -> dict[str, int]:
    """BPE, WordPiece and WordLevel map token to id; Unigram lists [token, score] in order of id."""
    if isinstance(vocab, list):
        return {str(token): index for index, (token, _) in enumerate(vocab)}
    return {str(token): int(index) for token, index in vocab.items()}


def check_pair(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise PairError, naming a token, unless both maps are the same."""
    if target.ids == draft.ids:
        return
    differing = [token for token in target.ids | draft.ids if target.ids.get(token) != draft.ids.get(token)]
    first = min(differing, key=lambda token: (target.ids.get(token, draft.ids.get(token, 0)), token))
    raise PairError(
        f"target and draft have different tokenizers: {len(differing)} tokens differ, such as {first!r}, "
        f"id {target.ids.get(first, 'none')} in the target and {draft.ids.get(first, 'none')} in the draft; "
        "choose a draft of the target's own family"
    )


def check_logits(model: str, vocabulary: Vocabulary, logits: int) -> None:
    """Raise PairError if a model has fewer logits than there are ids; more are padding, which the runtime masks."""
    if logits < vocabulary.size:
        raise PairError(
            f"the {model} has {logits} logits for a tokenizer of {vocabulary.size} ids; "
            "the tokenizer belongs to another model, or grew without the model"
        )
