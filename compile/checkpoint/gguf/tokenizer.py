"""The tokenizer of a GGUF file as a tokenizer.json: byte-level BPE by its pre-tokenizer's name, or sentencepiece's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import generate_merges

from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten
from mxspec.runtime.text.untrusted_tokenizer import GPT_4O, LLAMA_3, QWEN_2, TEKKEN, guarded

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # types of tokens; 1 is a normal one, 6 a byte
SPACE = "▁"  # sentencepiece's


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before BPE: by a `pattern`, or as GPT-2 does; at each digit, if `digits`."""

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False  # a word that is a token needs no merges
    begins: bool = False  # with the beginning of text, where the file does not say


CUTS = {  # by `tokenizer.ggml.pre`; patterns are those of the published tokenizer.json files
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "starcoder": PreTokenizer(digits=True),
    "refact": PreTokenizer(digits=True),
    "llama-bpe": PreTokenizer(LLAMA_3, whole_words=True, begins=True),
    "dbrx": PreTokenizer(LLAMA_3),
    "qwen2": PreTokenizer(QWEN_2, nfc=True),
    "olmo": PreTokenizer(nfc=True),
    "tekken": PreTokenizer(TEKKEN, whole_words=True),
    "gpt-4o": PreTokenizer(GPT_4O),
}
# Keys that are read here or by open_gguf.py, and those that say nothing about text; then those that must be off.
_KNOWN = {
    "model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_space_prefix",
    "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id",
    "seperator_token_id", "separator_token_id", "cls_token_id", "mask_token_id", "token_type_count",
    "prefix_token_id", "suffix_token_id", "middle_token_id", "fim_pre_token_id", "fim_suf_token_id",
    "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
}  # fmt: skip
_OFF = {"add_eos_token", "add_sep_token", "remove_extra_whitespaces", "normalizer.lowercase", "precompiled_charsmap"}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens of a file with their types, and what else its keys say; `path` goes into errors."""

    path: Path
    keys: Mapping[str, Any]
    tokens: Sequence[str]
    types: Sequence[int]

    @staticmethod
    def read(path: Path, keys: Mapping[str, Any]) -> GgufVocabulary:
        """Raises CheckpointError for none, UnsupportedModelError for a key that is not known."""
        own = {name.removeprefix(PREFIX): value for name, value in keys.items() if name.startswith(PREFIX)}
        if unknown := sorted(own.keys() - _KNOWN - _OFF):
            raise UnsupportedModelError(f"{path}: key {PREFIX}{unknown[0]} is not known, and may change tokens")
        for name in own.keys() & _OFF:
            if value := own[name].size if isinstance(own[name], np.ndarray) else own[name]:
                shown = "true" if value is True else shorten(own[name])
                raise UnsupportedModelError(f"{path}: {PREFIX}{name}: got {shown}, which is not supported")
        tokens = own.get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise CheckpointError(f"{path}: key {PREFIX}tokens is missing: a file without a vocabulary")
        types = own.get("token_type", np.ones(len(tokens), np.int32))
        if not isinstance(types, np.ndarray) or len(types) != len(tokens):
            raise CheckpointError(f"{path}: {PREFIX}token_type: expected a type for each of {len(tokens)} tokens")
        first: dict[str, int] = {}
        for number, token in enumerate(tokens):
            if first.setdefault(token, number) != number:
                raise CheckpointError(f"{path}: tokens {first[token]} and {number} are both {shorten(token)}")
        return GgufVocabulary(path, own, tokens, types.tolist())

    def flag(self, name: str, default: bool) -> bool:
        """A key that is true or false. Raises CheckpointError."""
        value = self.keys.get(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.path}: {PREFIX}{name}: got {shorten(value)}, expected true or false")
        return value

    def id_of(self, role: str) -> int | None:
        """The token that has a role, such as bos. Raises CheckpointError for an id outside the vocabulary."""
        value = self.keys.get(f"{role}_token_id")
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise CheckpointError(
                f"{self.path}: {PREFIX}{role}_token_id: got {shorten(value)}, expected 0 to {len(self.tokens) - 1}"
            )
        return value

    def text_of(self, role: str) -> str | None:
        """The text of the token that has a role."""
        number = self.id_of(role)
        return None if number is None else self.tokens[number]

    @property
    def ids(self) -> dict[str, int]:
        """Ids by token, without those that only fill up the table."""
        return {token: number for number, token in enumerate(self.tokens) if not self._fills(number)}

    @property
    def added(self) -> list[AddedToken]:
        """Tokens that are looked for before text is cut, in the order of their ids."""
        return [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]

    def _fills(self, number: int) -> bool:
        return self.types[number] == UNUSED and self.tokens[number] == f"[PAD{number}]"


def make_tokenizer_json(vocabulary: GgufVocabulary) -> str:
    """The text of a tokenizer.json. Raises CheckpointError for a damaged one, UnsupportedModelError for other kinds."""
    kind = vocabulary.keys.get("model")
    if kind == "gpt2":
        cut = _cut_of(vocabulary)
        make, begins = partial(_byte_level, vocabulary, cut, _merges_of(vocabulary)), cut.begins
    elif kind == "llama":
        make, begins = partial(_sentencepiece, vocabulary, _scores_of(vocabulary)), True
    else:
        raise UnsupportedModelError(
            f"{vocabulary.path}: {PREFIX}model: got {shorten(kind)}, expected gpt2 (byte-level BPE) or llama "
            "(sentencepiece); other tokenizers are not supported"
        )
    begin = _beginning(vocabulary) if vocabulary.flag("add_bos_token", begins) else None
    vocabulary.flag("add_space_prefix", True)
    with guarded(f"{vocabulary.path}: its tokenizer cannot be made", CheckpointError):
        made = make()
        made.add_tokens(vocabulary.added)
        if begin is not None:
            token, number = begin
            single, pair = f"{token} $A", f"{token} $A {token}:1 $B:1"
            made.post_processor = processors.TemplateProcessing(
                single=single, pair=pair, special_tokens=[(token, number)]
            )
        return str(made.to_str())


def _beginning(vocabulary: GgufVocabulary) -> tuple[str, int]:
    """The token that every text begins with, and its id."""
    number, token = vocabulary.id_of("bos"), vocabulary.text_of("bos")
    if number is None or token is None:
        raise CheckpointError(f"{vocabulary.path}: key {PREFIX}bos_token_id is missing, but add_bos_token is true")
    if " " in token or ":" in token or token.startswith("$"):
        raise UnsupportedModelError(
            f"{vocabulary.path}: the beginning of text {shorten(token)}: ' ', ':' and '$' are not supported in it"
        )
    return token, number


def _cut_of(vocabulary: GgufVocabulary) -> PreTokenizer:
    name = vocabulary.keys.get("pre")
    if not isinstance(name, str) or name not in CUTS:
        raise UnsupportedModelError(
            f"{vocabulary.path}: {PREFIX}pre: got {shorten(name)}, expected one of {', '.join(CUTS)}: how other "
            "pre-tokenizers cut text is not known"
        )
    return CUTS[name]


def _merges_of(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    written = vocabulary.keys.get("merges")
    written = written if isinstance(written, list) else []
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in written) if left and right]
    if not merges or len(merges) != len(written) or any(" " in right for _, right in merges):
        raise CheckpointError(f"{vocabulary.path}: {PREFIX}merges: expected pairs of tokens, one space between them")
    return merges


def _scores_of(vocabulary: GgufVocabulary) -> NDArray[np.float32]:
    scores = vocabulary.keys.get("scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"{vocabulary.path}: {PREFIX}scores: expected a score for each of {len(vocabulary.tokens)} tokens"
        )
    return scores


def _byte_level(vocabulary: GgufVocabulary, cut: PreTokenizer, merges: list[tuple[str, str]]) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=cut.whole_words))
    if cut.nfc:
        made.normalizer = normalizers.NFC()
    bytes_of_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if cut.digits else []
    if cut.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(cut.pattern), behavior="isolated"))
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_of_text])
    made.decoder = decoders.ByteLevel()
    return made


def _sentencepiece(vocabulary: GgufVocabulary, scores: NDArray[np.float32]) -> Tokenizer:
    ids = vocabulary.ids
    apart = {
        vocabulary.tokens[n] for n, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    }
    merges = generate_merges(ids, {token: float(scores[number]) for token, number in ids.items()}, apart)
    unknown = vocabulary.text_of("unknown") or next(
        (token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == UNKNOWN), None
    )
    made = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    back: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces: list[Any] = [normalizers.Replace(" ", SPACE)]
    if vocabulary.flag("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE))
        back.append(decoders.Strip(content=" ", left=1, right=0))
    made.normalizer = normalizers.Sequence(spaces)
    made.decoder = decoders.Sequence(back)
    return made
