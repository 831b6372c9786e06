"""Choose what the draft proposes: all tokens, the most frequent ones, those that it shares with the target, or text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fit_head import target_ids
from mxspec.compile.checkpoint.settings.generation_config import read_ends
from mxspec.compile.guesses import encode_text
from mxspec.compile.heads.eagle3 import Eagle3Config
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.pair import check_pair
from mxspec.compile.progress import Stages
from mxspec.compile.vocabulary.match_tokens import MatchedTokens, Side, TokenBytes, TokenReading, writing_arrays
from mxspec.compile.weights.calibration_text import write_calibration_text
from mxspec.compile.weights.rounding.speed import FEWEST_TOKENS, affordable_tokens, minutes_of
from mxspec.formats.bundle import BundleWriter
from mxspec.formats.errors import PairError, RecipeError
from mxspec.formats.manifest import ModelEntry, VocabularyEntry
from mxspec.formats.safetensors_file import write_arrays
from mxspec.recipes.recipe import DraftRecipe
from mxspec.recipes.recipe_text import RecipeText, read_recipe_text
from mxspec.runtime.text.encoding import encoder_of
from mxspec.runtime.text.tokenizer import load_tokenizer

FILE = "draft_tokens.safetensors"
HELD_OUT = 10  # one in so many tokens of a text, its last ones, measure what the others chose
MOSTLY_SHARED = 0.9  # share of the draft's tokens from which it proposes those that the target has, too

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The rows that the draft's head keeps, int64[rows] in the order of the target's ids, and the bundle's entry.

    `rows` is None where all are kept, in their order.
    """

    rows: Ids | None
    arrays: Mapping[str, NDArray[Any]]
    entry: VocabularyEntry

    def write(self, draft: ModelEntry, writer: BundleWriter) -> ModelEntry:
        """Write the file of tokens, and return the draft's entry with it."""
        writer.add_file(FILE, write_arrays(writer.folder / FILE, self.arrays))
        return draft.model_copy(update={"vocabulary": self.entry})


def choose_vocabulary(target: Model, of_draft: Model, place: Path, stages: Stages) -> DraftVocabulary | None:
    """The draft's tokens, or None if they are the target's. Raises MxspecError if no token can be proposed.

    `vocabulary` in the draft's recipe is the number of tokens to keep. Without a text the target writes one, which is
    kept below `place`.
    """
    draft = of_draft.recipe.draft
    assert draft is not None
    if isinstance(of_draft.checkpoint.config, Eagle3Config):
        return _of_head(draft, of_draft.checkpoint, target.known)
    try:
        note, different = check_pair(target.tokens, of_draft.tokens), None
    except PairError as error:
        note, different = None, error
    if note is not None:
        stages.note(f"warning: {note}")
    if different is None and draft.tokens is not None:
        raise RecipeError(f"draft.tokens: got {draft.tokens!r}, but the draft has the target's tokens; leave it out")
    if different is None and draft.vocabulary is None:
        if draft.text is not None:
            raise RecipeError(
                "draft.text: the draft keeps all tokens, the target's own; set draft.vocabulary, or leave it out"
            )
        return None
    if different is not None and target.checkpoint.config.is_encoder_decoder:
        raise different
    _check_support(draft, target.checkpoint, trimmed=different is None)
    if different is None:
        shared = np.arange(min(target.known, of_draft.known))
        pair = _Pair(shared, shared)
    else:
        pair = _match(target, of_draft, different)
    if draft.vocabulary is not None:
        _require_possible(pair.target, _ends(target), draft.vocabulary)
    text = _frequency_text(draft, target, place, stages)
    with stages.step("choose the draft's tokens"):
        chosen = _choose(draft, pair, text, target, of_draft)
    if different is not None:
        stages.note(_way_note(chosen, pair, given=bool(draft.tokens or draft.vocabulary)))
    return chosen


def _way_note(chosen: DraftVocabulary, pair: _Pair, *, given: bool) -> str:
    """Which way was chosen for a draft with another tokenizer, and by which figure."""
    entry = chosen.entry
    share = f"the target has {entry.shared:.1%} of the draft's tokens"
    if entry.text_shared is not None:
        share += f", {entry.text_shared:.1%} of those of the text"
    way = (
        "writes text in its own, which the target's tokenizer encodes (--draft-tokens text)"
        if entry.writes_text
        else f"proposes the {len(pair.target):,} tokens that both have (--draft-tokens tli)"
    )
    return (
        f"target and draft have different tokenizers: {share}, and it {way}, {'as asked' if given else 'by its share'}"
    )


def _of_head(draft: DraftRecipe, head: Checkpoint, known: int) -> DraftVocabulary:
    """The rows of a head in the order of the target's ids, of which the target knows `known`.

    Raises RecipeError for options of other drafts, CheckpointError for an invalid d2t.
    """
    for key, given in (("vocabulary", draft.vocabulary), ("text", draft.text), ("tokens", draft.tokens)):
        if given is not None:
            raise RecipeError(f"draft.{key}: the draft is an EAGLE-3 head, whose checkpoint names its tokens")
    ids = target_ids(head)
    rows = np.argsort(ids)
    rows = rows[ids[rows] < known]
    entry = VocabularyEntry(file=FILE, reads=known)
    return DraftVocabulary(rows, {"head_ids": ids[rows].astype(np.int32)}, entry)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The ids of the tokens that both models have, int64[tokens] in the order of the target's.

    For a draft with another tokenizer also how it reads and writes, and the share of its ordinary tokens among them.
    """

    target: Ids
    draft: Ids
    reading: Mapping[str, NDArray[np.int32]] | None = None
    writing: Mapping[str, NDArray[Any]] | None = None
    shared: float | None = None


def _check_support(draft: DraftRecipe, target: Checkpoint, *, trimmed: bool) -> None:
    """Raise RecipeError for what a draft with few or other tokens does not go with."""
    if target.config.is_encoder_decoder:
        raise RecipeError("draft.vocabulary: models with an encoder do not support it; leave it out")
    if draft.tokens == "text" and draft.vocabulary is not None:
        raise RecipeError("draft.vocabulary: a draft that writes text keeps its whole head; leave it out")
    what = "draft.vocabulary" if trimmed else "a draft with another tokenizer"
    if draft.has_budget:
        raise RecipeError(f"{what}: does not go with draft.budget or draft.max_ratio; give draft.format")


def _match(of_target: Model, of_draft: Model, different: PairError) -> _Pair:
    """The tokens that two tokenizers share. Raises PairError if there are none, or if tokens are not bytes."""
    try:
        target, draft = _side(of_target), _side(of_draft)
        matched = MatchedTokens.of(target, draft)
        if not matched.shared:
            raise PairError("no token of the draft has the bytes of a token of the target")
    except PairError as error:
        raise PairError(f"{different}; nor can they be mapped: {error}") from None
    ids = np.array(sorted(matched.draft_of), np.int64)
    reading = TokenReading(target, draft, matched)
    start = load_tokenizer(of_draft.checkpoint.tokenizer).encode("").ids
    begin = [draft.begin] if draft.begin is not None and start[:1] == [draft.begin] else []
    arrays = reading.arrays(of_target.known) | {"start": np.array(begin, np.int32)}
    in_draft = np.array([matched.draft_of[int(token)] for token in ids], np.int64)
    writing = writing_arrays(target, draft, matched, of_draft.known)
    return _Pair(ids, in_draft, arrays, writing, matched.shared / len(draft.tokens.ordinary))


def _side(model: Model) -> Side:
    begin, ends = read_ends(model.checkpoint.folder, model.known)
    return Side(TokenBytes.read(model.checkpoint.tokenizer, model.name, model.known), ends, begin)


@dataclass(frozen=True, slots=True)
class _FrequencyText:
    """Token ids of a text by the target's tokenizer, and the file that it came from, None if the target wrote it."""

    ids: NDArray[np.integer[Any]]
    file: RecipeText | None

    @property
    def split(self) -> int:
        """Number of tokens before those that are held out."""
        return len(self.ids) - len(self.ids) // HELD_OUT


def _frequency_text(draft: DraftRecipe, target: Model, place: Path, stages: Stages) -> _FrequencyText | None:
    """The text that says which tokens are frequent: the user's, or the target's own if tokens are to be chosen.

    The target writes as much as the recipe's `rounding_minutes` allow: None, and a note, if that is too little.
    """
    recipe = target.recipe
    if (path := recipe.draft_text()) is not None:
        file = read_recipe_text("draft.text", path)
        ids = encode_text(load_tokenizer(target.checkpoint.tokenizer), file.text, target.known)
        if len(ids) < HELD_OUT:
            raise RecipeError(f"draft.text: got {len(ids)} tokens, expected some pages of text")
        return _FrequencyText(ids, file)
    if draft.vocabulary is None:
        return None
    weights = sum(math.prod(tensor.shape) for tensor in target.checkpoint.tensors.values())
    tokens = affordable_tokens(recipe, lambda tokens: tokens * weights)
    if not tokens:
        stages.note(
            "the draft proposes the tokens with the lowest ids: having the target write a text needs "
            f"--rounding-minutes {math.ceil(minutes_of(FEWEST_TOKENS * weights))}; give --draft-text"
        )
        return None
    stages.note("the target writes a text, whose most frequent tokens the draft proposes; --draft-text takes yours")
    return _FrequencyText(write_calibration_text(target, tokens, place, stages).reshape(-1), None)


def _choose(
    draft: DraftRecipe, pair: _Pair, text: _FrequencyText | None, target: Model, of_draft: Model
) -> DraftVocabulary:
    kept = np.arange(len(pair.target))
    if draft.vocabulary is not None:
        counts = np.bincount(() if text is None else text.ids[: text.split], minlength=target.known)
        kept = most_frequent(pair.target, counts, _ends(target), draft.vocabulary)
    entry = VocabularyEntry(file=FILE, reads=of_draft.known, foreign=pair.reading is not None, shared=pair.shared)
    if text is not None and text.file is not None and pair.writing is not None:
        own = encode_text(load_tokenizer(of_draft.checkpoint.tokenizer), text.file.text, of_draft.known)
        shared = (pair.writing["head_ids"] >= 0)[own[-max(len(own) // HELD_OUT, 1) :]]
        entry = entry.model_copy(update={"text_shared": float(shared.mean())})
    if text is not None:
        held_out = text.ids[text.split :]
        lengths = None if pair.reading is None else np.diff(pair.reading["begins"])[held_out]
        entry = entry.model_copy(
            update={
                "text_sha256": None if text.file is None else text.file.sha256,
                "tokens": len(held_out),
                "covered": float(np.isin(held_out, pair.target[kept]).mean()),
                "lengthened": None if lengths is None else float(lengths.mean()),
            }
        )
    if pair.reading is not None and pair.writing is not None and _writes_text(draft, entry, target.checkpoint):
        entry = entry.model_copy(update={"writes_text": True, "covered": None})
        return DraftVocabulary(None, {**pair.reading, **pair.writing}, entry)
    arrays = {"head_ids": pair.target[kept].astype(np.int32), **(pair.reading or {})}
    return DraftVocabulary(pair.draft[kept], arrays, entry)


def _writes_text(draft: DraftRecipe, entry: VocabularyEntry, target: Checkpoint) -> bool:
    """Whether a draft with another tokenizer writes text: if asked, or if less of what it writes is shared.

    Raises RecipeError for what does not go with it.
    """
    share = entry.shared if entry.text_shared is None else entry.text_shared
    assert share is not None
    own = encoder_of(load_tokenizer(target.tokenizer)) is not None
    if draft.tokens == "text" and own:
        raise RecipeError(
            "draft.tokens: got 'text', but the target's tokenizer has expressions of its own, which "
            "take another process to encode; take 'tli'"
        )
    return draft.tokens == "text" or (
        draft.tokens is None and draft.vocabulary is None and not own and share < MOSTLY_SHARED
    )


def most_frequent(ids: Ids, counts: NDArray[np.int64], always: tuple[int, ...], wanted: int) -> Ids:
    """Places in `ids`, rising, of the `wanted` tokens with the highest counts, and of those that are kept `always`.

    Of equally frequent tokens those with lower ids are kept: the earlier merges of BPE. Raises RecipeError.
    """
    _require_possible(ids, always, wanted)
    forced = np.isin(ids, always)
    order = np.lexsort((ids, -counts[ids], ~forced))
    return np.sort(order[:wanted])


def _require_possible(ids: Ids, always: tuple[int, ...], wanted: int) -> None:
    least, most = max(int(np.isin(ids, always).sum()), 1), len(ids)
    if not least <= wanted <= most:
        raise RecipeError(
            f"draft.vocabulary: got {wanted}, expected {least} to {most}, the tokens that the draft can propose"
        )


def _ends(target: Model) -> tuple[int, ...]:
    return read_ends(target.checkpoint.folder, target.known)[1]
