"""Tokenizers of GGUF files: the ids that the tokenizer gives which a file was made from."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import generate_merges

from mxspec.compile.checkpoint.gguf.open_gguf import ends_of_text
from mxspec.compile.checkpoint.gguf.tokenizer import CUTS, PREFIX, GgufVocabulary, make_tokenizer_json
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

WORDS = [
    "the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs;", "it's", "DON'T", "We'LL", "x", "=", "12345",
    "3.14", "naïve", "größe", "Привет", "мир", "你好世界", "こんにちは", "👩\u200d💻", "é", "é",
]  # fmt: skip
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "", " "]
SPECIALS = ["<|begin|>", "<|end|>"]
# As in the tokenizer.json files that Llama 3, Qwen 2 and SmolLM 2 publish.
_SPACES_AND_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _SPACES_AND_SIGNS
PUBLISHED: dict[str, tuple[Any, Any]] = {  # normalizer, pre-tokenizer
    "gpt-2": (None, [pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "olmo": (normalizers.NFC(), [pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "smollm": (
        None,
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    ),
    "llama-bpe": (
        None,
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    ),
    "qwen2": (
        normalizers.NFC(),
        [
            pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    ),
}


def texts(count: int = 1000) -> list[str]:
    """Varied texts: words, runs of spaces, numbers, special tokens."""
    chance = random.Random(0)
    return [
        "".join(
            chance.choice([*WORDS, *SPECIALS, str(chance.randrange(10**6))]) + chance.choice(SPACES)
            for _ in range(chance.randrange(1, 12))
        )
        for _ in range(count)
    ]


def vocabulary_of(made: Tokenizer, kind: str, **keys: Any) -> GgufVocabulary:
    """What a file says of a tokenizer."""
    ids = {number: token for token, number in made.get_vocab().items()}
    tokens = [ids[number] for number in range(len(ids))]
    types = np.array([3 if token in SPECIALS else 1 for token in tokens], np.int32)
    given = {"model": kind, "tokens": tokens, "token_type": types, "bos_token_id": made.token_to_id(SPECIALS[0])} | keys
    return GgufVocabulary.read(Path("model.gguf"), {f"{PREFIX}{name}": value for name, value in given.items()})


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_ids_are_those_of_the_published_kind(pre: str) -> None:
    normalizer, steps = PUBLISHED[pre]
    made = Tokenizer(models.BPE(ignore_merges=CUTS[pre].whole_words))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(texts(300), trainer)
    made.add_special_tokens(SPECIALS)
    merges = [" ".join(merge) for merge in json.loads(made.to_str())["model"]["merges"]]
    read = Tokenizer.from_str(make_tokenizer_json(vocabulary_of(made, "gpt2", pre=pre, merges=merges)))
    begins = CUTS[pre].begins
    for text in texts():
        ids = read.encode(text).ids
        assert ids[:1] == [made.token_to_id(SPECIALS[0])] or not begins
        assert ids[begins:] == made.encode(text).ids, text
        assert read.decode(ids, skip_special_tokens=False) == made.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentencepiece_ids_are_those_of_a_fast_tokenizer(prefixed: bool) -> None:
    """As Llama 2's and Mistral's tokenizer.json: pieces by score, bytes for what no piece has."""
    pieces = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    chance = random.Random(1)
    letters = sorted({letter for word in WORDS for letter in word if letter.isascii()} | {"▁"})
    words = sorted(
        {word[:size] for word in WORDS if word.isascii() for size in range(2, 6)} | {"▁the", "▁q", "▁▁", "th"}
    )
    chance.shuffle(words)
    pieces += [*words, *letters]
    pieces = list(dict.fromkeys(pieces))
    ids = {piece: number for number, piece in enumerate(pieces)}
    scores = {piece: -float(number) for number, piece in enumerate(pieces)}
    merges = generate_merges(ids, scores, {"<unk>", *SPECIALS})
    made = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    normalize = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(normalize if prefixed else normalize[1:])
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    made.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], ids[SPECIALS[0]])]
    )
    values = np.array([scores[piece] for piece in pieces], np.float32)
    read = Tokenizer.from_str(
        make_tokenizer_json(vocabulary_of(made, "llama", scores=values, add_space_prefix=prefixed))
    )
    for text in texts():
        assert read.encode(text).ids == made.encode(text).ids, text


def test_ends_are_those_of_keys_and_control_tokens_that_end_a_turn() -> None:
    tokens = ["a", "<|end|>", "<|im_end|>", "</s>", "<|eot_id|>"]
    types = np.array([1, 3, 1, 3, 3], np.int32)
    keys = {"tokens": tokens, "token_type": types, "eos_token_id": 3, "eot_token_id": 4}
    vocabulary = GgufVocabulary.read(Path("m"), {f"{PREFIX}{name}": value for name, value in keys.items()})
    assert ends_of_text(vocabulary) == [3, 4, 1]  # <|im_end|> is no control token here


def test_two_tokens_of_one_text_are_refused() -> None:
    with pytest.raises(CheckpointError, match="tokens 0 and 2 are both 'a'"):
        GgufVocabulary.read(Path("m"), {f"{PREFIX}tokens": ["a", "b", "a"]})


def test_keys_that_are_off_are_accepted_and_others_refused_by_value() -> None:
    """Gemma's files say that no separator is added; all names are those of the package's table."""
    known = {value.removeprefix(PREFIX) for key, value in vars(gguf.Keys.Tokenizer).items() if not key.startswith("_")}
    ids = [name for name in known if name.endswith("_token_id")]
    off = {"add_sep_token": False, "remove_extra_whitespaces": False, "precompiled_charsmap": np.zeros(0, np.int8)}
    given = {"tokens": ["a", "b"], "token_type_count": 1} | dict.fromkeys(ids, 1) | off
    assert known - given.keys() == {
        "model", "pre", "token_type", "scores", "merges", "add_bos_token", "add_eos_token", "add_space_prefix",
        "tokenizer.huggingface.json", "tokenizer.rwkv.world", "tokenizer.chat_template", "tokenizer.chat_templates",
        "tokenizer.chat_template.{name}",
    }  # fmt: skip
    GgufVocabulary.read(Path("m"), {f"{PREFIX}{name}": value for name, value in given.items()})
    for name, value in (
        ("add_sep_token", True),
        ("remove_extra_whitespaces", True),
        ("precompiled_charsmap", np.ones(3, np.int8)),
        ("normalizer.lowercase", True),
    ):
        with pytest.raises(UnsupportedModelError, match=rf"{PREFIX}{name}: got .*, which is not supported"):
            GgufVocabulary.read(Path("m"), {f"{PREFIX}tokens": ["a"], f"{PREFIX}{name}": value})
    with pytest.raises(UnsupportedModelError, match=r"key tokenizer\.ggml\.new is not known"):
        GgufVocabulary.read(Path("m"), {f"{PREFIX}tokens": ["a"], f"{PREFIX}new": False})
